# Two plugins that test_plugin.c opens: one whole, one that speaks no interface of ours.
foreach(kind good other)
  add_library(omniq-plugin-${kind} MODULE ${CMAKE_CURRENT_LIST_DIR}/plugin_${kind}.c ${OMNIQ_PLUGIN_BASE})
  omniq_options(omniq-plugin-${kind})
  target_include_directories(omniq-plugin-${kind} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  set_target_properties(omniq-plugin-${kind} PROPERTIES PREFIX "" OUTPUT_NAME omniq-${kind} C_VISIBILITY_PRESET hidden
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/plugins)
  if(NOT OMNIQ_SANITIZE) # whose run time has the names that it needs at the start
    target_link_options(omniq-plugin-${kind} PRIVATE -Wl,-z,defs) # as omniq-cuda.so is
  endif()
  target_link_libraries(omniq-plugin-${kind} PRIVATE Threads::Threads)
  add_dependencies(test_plugin omniq-plugin-${kind})
endforeach()
