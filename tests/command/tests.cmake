# The command as people and scripts use it: each script prints "N passed, N failed".
if(TARGET omniq-cli)
  foreach(name flags lists generate compare faults bench)
    if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/${name}.sh)
      add_test(NAME command_${name} COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/${name}.sh $<TARGET_FILE:omniq-cli>
               WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    endif()
  endforeach()
  # Thirty whole pictures: sanitizers see the same code in the other scripts.
  if(NOT OMNIQ_SANITIZE)
    add_test(NAME command_quality COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/quality.sh $<TARGET_FILE:omniq-cli>
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  endif()
endif()
