# libtorch, for frontends/torch alone. gradpress_torch_sources(target): the target's sources include
# torch's headers.
set(Torch_FOUND FALSE)
if(NOT DEFINED GRADPRESS_WITH_TORCH OR GRADPRESS_WITH_TORCH)
  find_package(Torch QUIET)
endif()
option(GRADPRESS_WITH_TORCH "The torch front end: C++ data parallel, trainer, PyTorch plug-in" ${Torch_FOUND})
if(GRADPRESS_WITH_TORCH AND NOT Torch_FOUND)
  message(FATAL_ERROR "GRADPRESS_WITH_TORCH: libtorch was not found; install libtorch-dev")
endif()

# Torch's headers take some 15 s to read, so they are read once: all targets share the precompiled
# header of gradpress_ddp. It is used only by what is compiled with the same options, hence -fPIC for
# programs, too.
function(gradpress_torch_sources target)
  target_link_libraries(${target} PRIVATE torch)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  if(target STREQUAL gradpress_ddp)
    set(before "")
    if(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND Torch_VERSION VERSION_LESS 2)
      set(before ${PROJECT_SOURCE_DIR}/cmake/torch_for_clang.h)
    endif()
    target_precompile_headers(${target} PRIVATE ${before} <torch/torch.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM gradpress_ddp)
  endif()
endfunction()
