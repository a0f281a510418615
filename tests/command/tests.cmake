# The command as people and scripts use it: each script prints "N passed, N failed".
if(TARGET omniq-cli)
  foreach(name completion flags lists generate compare attention faults bench threads adapt published)
    if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/${name}.sh)
      add_test(NAME command_${name} COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/${name}.sh ${OMNIQ_COMMAND}
               WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    endif()
  endforeach()
  if(NOT OMNIQ_SANITIZE) # shadow memory is not the plan's; what documents say is the same in every build
    foreach(name memory documents)
      add_test(NAME command_${name} COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/${name}.sh ${OMNIQ_COMMAND}
               WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    endforeach()
  endif()
endif()
