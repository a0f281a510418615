# The well-kept libraries that omniq stands on; each has its reason in docs/DEPENDENCIES.md.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(LIBFYAML REQUIRED IMPORTED_TARGET libfyaml)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)

add_library(omniq-libraries INTERFACE)
target_link_libraries(omniq-libraries INTERFACE PkgConfig::JANSSON PkgConfig::LIBFYAML PkgConfig::PCRE2
                      PkgConfig::UTF8PROC PkgConfig::PNG Threads::Threads m ${CMAKE_DL_LIBS})
