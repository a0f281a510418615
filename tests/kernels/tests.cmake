# kcheck: all kernels of the lists, once for each level of instructions; levels that the machine lacks are skipped.
file(GLOB OMNIQ_KCHECK_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kcheck*.c)
omniq_test_program(kcheck ${OMNIQ_KCHECK_SOURCES})
foreach(level ref avx2 avxvnni avx512 avx512vnni avx512bf16 amx)
  add_test(NAME kcheck_${level} COMMAND kcheck --cpu ${level} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(kcheck_${level} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
