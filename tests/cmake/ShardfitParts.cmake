# What every part of the house is built with: one static library a folder, one test program a folder of tests.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(shardfit_options INTERFACE)
target_include_directories(shardfit_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(shardfit_options INTERFACE -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers
                                                  -fno-omit-frame-pointer)
if(SHARDFIT_SANITIZE)
  target_compile_options(shardfit_options INTERFACE -fsanitize=${SHARDFIT_SANITIZE})
  target_link_options(shardfit_options INTERFACE -fsanitize=${SHARDFIT_SANITIZE})
endif()

# shardfit_part(NAME [LINK target...]): every .cpp of the current folder as the static library shardfit_NAME.
function(shardfit_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(NOT sources)
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
    file(WRITE ${sources} "")
  endif()
  add_library(shardfit_${name} STATIC ${sources})
  target_link_libraries(shardfit_${name} PUBLIC shardfit_options nlohmann_json::nlohmann_json fmt::fmt ${arg_LINK})
endfunction()

# shardfit_embed(TARGET FILE SYMBOL): FILE's bytes as `std::string_view shardfit::embedded::SYMBOL()`, declared in
# "embedded/SYMBOL.hpp"; the program needs no data folder at run time.
function(shardfit_embed target file symbol)
  get_filename_component(path ${file} ABSOLUTE)
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/embedded_${symbol})
  file(WRITE ${dir}/embedded/${symbol}.hpp.tmp
       "#pragma once\n#include <string_view>\nnamespace shardfit::embedded {\nstd::string_view ${symbol}();\n}\n")
  configure_file(${dir}/embedded/${symbol}.hpp.tmp ${dir}/embedded/${symbol}.hpp COPYONLY)
  file(WRITE ${dir}/${symbol}.cpp.tmp
       "#include \"embedded/${symbol}.hpp\"\n"
       "__asm__(\".section .rodata\\n.balign 16\\nshardfit_embedded_${symbol}_begin:\\n.incbin \\\"${path}\\\"\\n\"\n"
       "        \"shardfit_embedded_${symbol}_end:\\n.byte 0\\n.previous\\n\");\n"
       "extern \"C\" const char shardfit_embedded_${symbol}_begin[], shardfit_embedded_${symbol}_end[];\n"
       "namespace shardfit::embedded {\nstd::string_view ${symbol}() {\n"
       "  return {shardfit_embedded_${symbol}_begin, static_cast<std::size_t>(shardfit_embedded_${symbol}_end - "
       "shardfit_embedded_${symbol}_begin)};\n}\n}\n")
  configure_file(${dir}/${symbol}.cpp.tmp ${dir}/${symbol}.cpp COPYONLY)
  set_source_files_properties(${dir}/${symbol}.cpp PROPERTIES OBJECT_DEPENDS ${path})
  target_sources(${target} PRIVATE ${dir}/${symbol}.cpp)
  target_include_directories(${target} PRIVATE ${dir})
endfunction()

# shardfit_tests(NAME LINK target... [LABELS l...] [TIMEOUT s]): every *_test.cpp of the current folder as one program of
# GoogleTest, run one test of ctest a test suite member. Without LABELS: fast.
function(shardfit_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "LINK;LABELS;SOURCES")
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_SOURCES)
    file(GLOB arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  endif()
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SHARDFIT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SHARDFIT_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
