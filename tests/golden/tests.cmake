# Golden files and the exports list.
if(TARGET omniq-cli)
  add_test(NAME golden COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/run.sh ${OMNIQ_COMMAND}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endif()
if(NOT OMNIQ_SANITIZE)
  add_test(NAME exports COMMAND ${PROJECT_SOURCE_DIR}/tools/dev/check_exports $<TARGET_FILE:omniq-shared>
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endif()
add_test(NAME includes COMMAND ${PROJECT_SOURCE_DIR}/tools/dev/check_includes WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_test(NAME faults COMMAND ${PROJECT_SOURCE_DIR}/tools/dev/check_faults WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
