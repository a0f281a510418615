# The Python package over the shared library. A sanitizer's runtime would have to be in Python itself.
find_program(OMNIQ_PYTHON python3)
if(OMNIQ_PYTHON AND TARGET omniq-cli AND NOT OMNIQ_SANITIZE)
  add_test(NAME python_package COMMAND ${OMNIQ_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/test_package.py)
  set_tests_properties(python_package PROPERTIES ENVIRONMENT
                       "OMNIQ_LIBRARY=$<TARGET_FILE:omniq-shared>;PYTHONDONTWRITEBYTECODE=1")
endif()
