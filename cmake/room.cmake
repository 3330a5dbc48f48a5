# gradpress_room(name [FOLDER folder] SOURCES … MAY_USE rooms… EXTERNAL targets…)
# One static library per room, and the test layers.<name> that fails when the room includes what it may not.
# A file per directory line: a room's libraries are private, so a user links gradpress::gradpress alone.
function(gradpress_room name)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "" "FOLDER" "SOURCES;MAY_USE;EXTERNAL")
  add_library(gradpress_${name} STATIC ${ROOM_SOURCES})
  add_library(gradpress::${name} ALIAS gradpress_${name})
  target_include_directories(gradpress_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  list(TRANSFORM ROOM_MAY_USE PREPEND gradpress:: OUTPUT_VARIABLE links)
  target_link_libraries(gradpress_${name} PUBLIC ${links} ${ROOM_EXTERNAL} PRIVATE gradpress_flags)
  set_property(GLOBAL APPEND PROPERTY GRADPRESS_ROOMS ${name})
  if(NOT ROOM_FOLDER)
    set(ROOM_FOLDER src/${name})
  endif()
  if(GRADPRESS_TESTS)
    add_test(NAME layers.${name} COMMAND Python3::Interpreter
      ${PROJECT_SOURCE_DIR}/tools/check_layers.py ${PROJECT_SOURCE_DIR} ${ROOM_FOLDER} ${ROOM_MAY_USE})
  endif()
endfunction()
