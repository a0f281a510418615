# What is installed, used as a stranger uses it. A sanitizer's runtime is no part of the pkg-config file.
if(TARGET omniq-cli AND NOT OMNIQ_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  add_test(NAME install COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/install.sh ${OMNIQ_COMMAND} ${CMAKE_C_COMPILER}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endif()
