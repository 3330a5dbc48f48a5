# Gloo and Highway: Debian's shared libraries, or, with GRADPRESS_BUNDLED, static ones that end up
# inside libgradpress.so and the program. The Python wheel is built so: it must run where neither is
# installed, and beside a torch that brings another Gloo.
set(GRADPRESS_BUNDLED "" CACHE PATH "Folder with static Gloo and Highway, made by tools/bundled_libraries.sh")
if(NOT GRADPRESS_BUNDLED)
  find_package(hwy REQUIRED)
  find_package(Gloo CONFIG QUIET)
  return()
endif()

find_package(Gloo CONFIG REQUIRED PATHS ${GRADPRESS_BUNDLED}/share/cmake/Gloo NO_DEFAULT_PATH)

# Headers and definitions of libhwy-dev, so that a compiler cache serves this build and others alike.
find_path(GRADPRESS_HIGHWAY_HEADERS hwy/highway.h REQUIRED)
mark_as_advanced(GRADPRESS_HIGHWAY_HEADERS)
set(version)
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${GRADPRESS_HIGHWAY_HEADERS}/hwy/highway.h line REGEX "^#define HWY_${part} ")
  string(REGEX REPLACE "[^0-9]" "" number "${line}")
  list(APPEND version ${number})
endforeach()
list(JOIN version . version)
file(STRINGS ${GRADPRESS_BUNDLED}/highway_version wanted)
if(NOT version STREQUAL wanted)
  message(FATAL_ERROR "GRADPRESS_BUNDLED: ${GRADPRESS_BUNDLED} has Highway ${wanted}, the headers in "
    "${GRADPRESS_HIGHWAY_HEADERS} are of ${version}; install libhwy-dev ${wanted}, as Debian 12 has it")
endif()
add_library(hwy::hwy STATIC IMPORTED)
set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION ${GRADPRESS_BUNDLED}/lib/libhwy.a
  INTERFACE_INCLUDE_DIRECTORIES ${GRADPRESS_HIGHWAY_HEADERS}
  INTERFACE_COMPILE_DEFINITIONS "HWY_SHARED_DEFINE;TOOLCHAIN_MISS_ASM_HWCAP_H")
