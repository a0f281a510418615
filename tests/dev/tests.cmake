# The tools that check sources and count tests, over small trees with one offence each.
add_test(NAME dev_tools COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/tools.sh WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
