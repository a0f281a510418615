# Toolchain: AArch64 Linux from another machine. OMNIQ_ARM_ROOT is a folder with Debian's arm64 libraries and headers
# (tools/dev/arm_root makes one); programs run under qemu-user, as the processor that OMNIQ_ARM_CPU names.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(OMNIQ_ARM_ROOT ${CMAKE_CURRENT_LIST_DIR}/../.cache/arm64 CACHE PATH "Debian's arm64 files")
set(OMNIQ_ARM_CPU max CACHE STRING "the processor that qemu-user stands for")
get_filename_component(OMNIQ_ARM_ROOT ${OMNIQ_ARM_ROOT} REALPATH)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES OMNIQ_ARM_ROOT)

if(NOT CMAKE_C_COMPILER)
  set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
endif()
set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu) # what clang asks for
set(CMAKE_SYSROOT ${OMNIQ_ARM_ROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu ${OMNIQ_ARM_CPU} -L ${OMNIQ_ARM_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${OMNIQ_ARM_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${OMNIQ_ARM_ROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${OMNIQ_ARM_ROOT})
