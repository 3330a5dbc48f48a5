# ccache when it is there and nobody chose another launcher. Paths below the project count as
# relative ones, so that a second clone finds what the first compiled.
find_program(GRADPRESS_CCACHE ccache)
mark_as_advanced(GRADPRESS_CCACHE)
if(GRADPRESS_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    # What ccache asks for when a header is precompiled.
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${GRADPRESS_CCACHE})
endif()

# gradpress_flags: what every target of ours is compiled with; never exported to users.
add_library(gradpress_flags INTERFACE)
target_compile_options(gradpress_flags INTERFACE
  -Wall -Wextra $<$<BOOL:${GRADPRESS_WERROR}>:-Werror> -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-qual
  # Payload bytes must not depend on whether a target has fused multiply-add.
  -ffp-contract=off
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  # Highway's foreach_target re-includes a file by its __FILE__; clang warns of nothing useful there.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-psabi>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi>)
# Under sanitizers the kernels take SSE4 for granted on x86-64, as any CPU since 2010 has it: Highway
# then leaves out its emulation of vectors and SSSE3, which took more time to compile than the targets of all three
# vector lengths together. Release builds have, and test, all targets.
if((GRADPRESS_SANITIZE OR GRADPRESS_FUZZ) AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  target_compile_options(gradpress_flags INTERFACE -msse4.2 -maes -mpclmul)
endif()
if(GRADPRESS_SANITIZE)
  target_compile_options(gradpress_flags INTERFACE
    -fsanitize=${GRADPRESS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(gradpress_flags INTERFACE -fsanitize=${GRADPRESS_SANITIZE})
endif()
