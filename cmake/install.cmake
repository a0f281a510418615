# make install: library, header, command, pkg-config file.
include(GNUInstallDirs)
install(TARGETS omniq-static omniq-shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET omniq-cli)
  install(TARGETS omniq-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${CMAKE_BINARY_DIR}/omniq.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(DIRECTORY include/omniq DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
configure_file(cmake/omniq.pc.in omniq.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/omniq.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
