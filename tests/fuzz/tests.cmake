# One program per door by which foreign bytes come in: fuzz_<door>.c. Each is always built with the replay driver and run
# over tests/fuzz/corpus/<door>; OMNIQ_FUZZ adds the real libFuzzer programs (clang):
#   CC=clang make BUILD=build-fuzz CMAKE_FLAGS="-DOMNIQ_FUZZ=ON -DOMNIQ_SANITIZE=address,undefined"
#   build-fuzz/tests/libfuzzer_safetensors -max_total_time=300 NEW_CORPUS tests/fuzz/corpus/safetensors
option(OMNIQ_FUZZ "build libFuzzer programs (needs clang)" OFF)

if(OMNIQ_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OMNIQ_FUZZ needs clang: configure with CC=clang")
  endif()
  # Coverage where foreign bytes are read; other rooms never see them as they come.
  set(rooms ${OMNIQ_SOURCES})
  list(FILTER rooms INCLUDE REGEX "/src/(base|config|ckpt|quant|text|media)/")
  set_property(SOURCE ${rooms} TARGET_DIRECTORY omniq-objects APPEND PROPERTY COMPILE_OPTIONS -fsanitize=fuzzer-no-link)
endif()

# Folders of samples that other tests keep and that are replayed as well.
set(OMNIQ_FUZZ_SAMPLES_safetensors ${PROJECT_SOURCE_DIR}/tests/data/ckpt)
set(OMNIQ_FUZZ_SAMPLES_gguf ${PROJECT_SOURCE_DIR}/tests/data/ckpt ${PROJECT_SOURCE_DIR}/tests/data/quant/gguf)
set(OMNIQ_FUZZ_SAMPLES_pickle ${PROJECT_SOURCE_DIR}/tests/data/torch)
set(OMNIQ_FUZZ_SAMPLES_png ${PROJECT_SOURCE_DIR}/tests/data/media)

file(GLOB OMNIQ_FUZZ_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/fuzz_*.c)
foreach(source ${OMNIQ_FUZZ_SOURCES})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE "fuzz_" "" door ${name})
  omniq_test_program(${name} ${source} ${CMAKE_CURRENT_LIST_DIR}/replay.c)
  add_test(NAME ${name} COMMAND ${name} ${CMAKE_CURRENT_LIST_DIR}/corpus/${door} ${OMNIQ_FUZZ_SAMPLES_${door}}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(OMNIQ_FUZZ)
    omniq_test_program(libfuzzer_${door} ${source})
    target_compile_options(libfuzzer_${door} PRIVATE -fsanitize=fuzzer-no-link)
    target_link_options(libfuzzer_${door} PRIVATE -fsanitize=fuzzer)
  endif()
endforeach()
