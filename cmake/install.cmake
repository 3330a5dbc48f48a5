# What a user gets: libgradpress, shared and static, from the objects of all rooms; the public
# headers; a CMake package and a pkg-config file; the program.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY GRADPRESS_ROOMS)
list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:gradpress_\\1>" OUTPUT_VARIABLE room_objects)
# The libraries that the rooms' objects call. Header-only packages do not belong here.
set(room_libraries hwy::hwy)
if(GRADPRESS_WITH_GLOO)
  list(APPEND room_libraries gloo)
  set(static_libraries " -lgloo")
endif()

add_library(gradpress_shared SHARED ${room_objects})
add_library(gradpress_static STATIC ${room_objects})
foreach(kind shared static)
  add_library(gradpress::${kind} ALIAS gradpress_${kind})
  set_target_properties(gradpress_${kind} PROPERTIES
    OUTPUT_NAME gradpress EXPORT_NAME ${kind} LINKER_LANGUAGE CXX)
  target_compile_features(gradpress_${kind} INTERFACE cxx_std_20)
  target_include_directories(gradpress_${kind} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(gradpress_${kind} PUBLIC tl::expected PRIVATE $<BUILD_INTERFACE:gradpress_flags>)
endforeach()
add_library(gradpress::gradpress ALIAS gradpress_shared)

# Whoever links the shared library needs no development files of what it calls; whoever links the
# static one does.
target_link_libraries(gradpress_shared PRIVATE "$<BUILD_INTERFACE:${room_libraries}>")
target_link_libraries(gradpress_static PRIVATE ${room_libraries})

# Hidden visibility hides our own symbols; this also hides the standard library's templates that we
# instantiate, so that the exported names are the public API and nothing else. A library that carries
# Gloo and Highway inside exports the C interface alone. It has no soname: programs open it by its
# path, and what was linked with an installed libgradpress.so must not bind to it.
set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
if(GRADPRESS_BUNDLED)
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports_c.map)
  set_target_properties(gradpress_shared PROPERTIES NO_SONAME ON)
endif()
target_link_options(gradpress_shared PRIVATE LINKER:--version-script=${exports})
set_target_properties(gradpress_shared PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${exports})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gradpress)
set(kinds shared static)
set(absent_headers PATTERN ddp.h EXCLUDE)
if(GRADPRESS_WITH_TORCH)
  list(APPEND kinds torch)
  set(absent_headers)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/torch_for_clang.h DESTINATION ${package_dir})
endif()
foreach(kind ${kinds})
  install(TARGETS gradpress_${kind} EXPORT gradpress-${kind})
  install(EXPORT gradpress-${kind} NAMESPACE gradpress:: DESTINATION ${package_dir})
endforeach()
if(GRADPRESS_CLI)
  install(TARGETS gradpress_cli)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/gradpress
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" ${absent_headers})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gradpress-config.cmake.in
  ${PROJECT_BINARY_DIR}/gradpress-config.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a new minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradpress-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradpress-config.cmake
  ${PROJECT_BINARY_DIR}/gradpress-config-version.cmake DESTINATION ${package_dir})

# Paths relative to the file itself, so that an installed tree can be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pkgconfig_to_prefix /prefix/${pkgconfig_dir} /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/gradpress.pc.in ${PROJECT_BINARY_DIR}/gradpress.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gradpress.pc DESTINATION ${pkgconfig_dir})
