# quality_doc measures the tables of docs/QUALITY.md (make quality); test_quality_doc holds the committed ones to today's.
omniq_test_program(quality_doc ${CMAKE_CURRENT_LIST_DIR}/quality_doc.c ${OMNIQ_SUPPORT_OBJECTS})
