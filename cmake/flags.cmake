# Warnings, sanitizers and the ISA flags that a file's suffix asks for.

function(omniq_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wvla -Wstrict-prototypes
                         -Wmissing-prototypes -Wpointer-arith -Werror -ffp-contract=off -fno-math-errno)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
  if(OMNIQ_SANITIZE)
    # -O2: clang 14 takes more than ten minutes a file over vector code checked at -O3.
    target_compile_options(${target} PRIVATE -fsanitize=${OMNIQ_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all -O2)
    target_link_options(${target} PUBLIC -fsanitize=${OMNIQ_SANITIZE})
    target_compile_definitions(${target} PRIVATE OMNIQ_SANITIZED)
  endif()
endfunction()

set(OMNIQ_ISA_avx2 -mavx2 -mfma -mf16c)
set(OMNIQ_ISA_avxvnni ${OMNIQ_ISA_avx2} -mavxvnni)
set(OMNIQ_ISA_avx512 ${OMNIQ_ISA_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(OMNIQ_ISA_avx512vnni ${OMNIQ_ISA_avx512} -mavx512vnni)
set(OMNIQ_ISA_avx512vbmi ${OMNIQ_ISA_avx512} -mavx512vbmi)
set(OMNIQ_ISA_avx512bf16 ${OMNIQ_ISA_avx512vbmi} -mavx512bf16)
set(OMNIQ_ISA_amx ${OMNIQ_ISA_avx512bf16} -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16)
if(CMAKE_C_COMPILER_ID STREQUAL GNU) # moving loads up before registers are given out, gcc 12 then lacks registers for sums
  set(OMNIQ_ISA_neon -fno-schedule-insns)
endif()
set(OMNIQ_ISA_dotprod ${OMNIQ_ISA_neon} -march=armv8.2-a+dotprod)
set(OMNIQ_ISA_i8mm ${OMNIQ_ISA_dotprod}+i8mm)
set(OMNIQ_ISA_bf16 ${OMNIQ_ISA_dotprod}+bf16)

set(OMNIQ_SUFFIXES_X86 "_(avx2|avxvnni|avx512|avx512vnni|avx512vbmi|avx512bf16|amx)\\.c$")
set(OMNIQ_SUFFIXES_ARM "/src/cpu/.*_(neon|dotprod|i8mm|bf16)\\.c$")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(OMNIQ_SUFFIXES ${OMNIQ_SUFFIXES_X86})
  set(OMNIQ_SUFFIXES_OTHER ${OMNIQ_SUFFIXES_ARM})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(OMNIQ_SUFFIXES ${OMNIQ_SUFFIXES_ARM})
  set(OMNIQ_SUFFIXES_OTHER ${OMNIQ_SUFFIXES_X86})
else()
  set(OMNIQ_SUFFIXES "^$")
  set(OMNIQ_SUFFIXES_OTHER "${OMNIQ_SUFFIXES_X86}|${OMNIQ_SUFFIXES_ARM}")
endif()

# linear_wf32_af32_avx2.c gets OMNIQ_ISA_avx2, and so on; "_ref.c" gets nothing. What is another processor's leaves the list.
function(omniq_isa_flags list)
  list(FILTER ${list} EXCLUDE REGEX "${OMNIQ_SUFFIXES_OTHER}")
  foreach(source ${${list}})
    if(source MATCHES "${OMNIQ_SUFFIXES}")
      set(options ${OMNIQ_ISA_${CMAKE_MATCH_1}})
      if(OMNIQ_SANITIZE) # gcc 12 takes 44 s at -O2 over one file of vector code with its checks, 12 s at -O1, 4 s without
        list(APPEND options -O1)
      endif()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
