# make install: library, header, command, manual page, completion for shells, pkg-config file; make uninstall takes the same files away.
include(GNUInstallDirs)
install(TARGETS omniq-static omniq-shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET omniq-cli)
  install(TARGETS omniq-cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${CMAKE_BINARY_DIR}/omniq.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_BINARY_DIR}/completion/omniq.bash RENAME omniq
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${CMAKE_BINARY_DIR}/completion/omniq.zsh RENAME _omniq
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${CMAKE_BINARY_DIR}/completion/omniq.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
install(DIRECTORY include/omniq DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(OMNIQ_PC_LIBRARIES jansson libfyaml libpcre2-8 libutf8proc libpng) # who links libomniq.a needs what this build has
foreach(library JPEG WEBP)
  if(OMNIQ_${library} AND ${library}_FOUND)
    list(APPEND OMNIQ_PC_LIBRARIES ${${library}_MODULES})
  endif()
endforeach()
list(JOIN OMNIQ_PC_LIBRARIES " " OMNIQ_PC_LIBRARIES)
configure_file(cmake/omniq.pc.in omniq.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/omniq.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
