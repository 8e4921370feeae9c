# LibTorch for the runtime: a LibTorch download or an unpacked PyPI wheel, whichever SHARDFIT_LIBTORCH names.
#
# find_package(Torch) is not used: in a CUDA wheel it insists on a CUDA toolkit, although the CPU part runs without one. Own targets:
#   shardfit_torch         libtorch_cpu, libc10 and the OpenMP runtime that comes with them
#   shardfit_torch_cuda    also libtorch_cuda, libc10_cuda, the CUDA runtime and NCCL (only with SHARDFIT_CUDA)
# Result: SHARDFIT_LIBTORCH_KIND = absent | CPU | CUDA.

set(SHARDFIT_LIBTORCH_KIND absent)
set(torch_lib ${SHARDFIT_LIBTORCH}/lib)
set(torch_include ${SHARDFIT_LIBTORCH}/include)
if(NOT SHARDFIT_LIBTORCH OR NOT EXISTS ${torch_lib}/libtorch_cpu.so OR NOT EXISTS ${torch_lib}/libc10.so
   OR NOT EXISTS ${torch_include}/ATen/core/Tensor.h)
  message(STATUS "LibTorch: absent (SHARDFIT_LIBTORCH=${SHARDFIT_LIBTORCH}): shardfit-train is not built, everything else is")
  return()
endif()

set(SHARDFIT_LIBTORCH_KIND CPU)
foreach(library c10 torch_cpu)
  add_library(shardfit_lib${library} SHARED IMPORTED)
  set_target_properties(shardfit_lib${library} PROPERTIES IMPORTED_LOCATION ${torch_lib}/lib${library}.so)
endforeach()
add_library(shardfit_torch INTERFACE)
# Searched last: the wheel brings its own copies of fmt, nlohmann and others, which must not stand in for the system's.
target_compile_options(shardfit_torch INTERFACE "SHELL:-idirafter ${torch_include}" "SHELL:-idirafter ${torch_include}/torch/csrc/api/include")
target_link_libraries(shardfit_torch INTERFACE shardfit_libtorch_cpu shardfit_libc10)
# The wheel finds its own CUDA runtime beside itself; the linker is told where, since it resolves what libraries need in turn.
target_link_options(shardfit_torch INTERFACE "LINKER:-rpath-link,${torch_lib}/../../nvidia/cu13/lib")
# One OpenMP runtime in the process: the one that libtorch_cpu was linked with, not the compiler's.
file(GLOB torch_openmp ${torch_lib}/libgomp*.so*)
target_compile_options(shardfit_torch INTERFACE -fopenmp)
if(torch_openmp)
  list(GET torch_openmp 0 torch_openmp)
  add_library(shardfit_libgomp SHARED IMPORTED)
  set_target_properties(shardfit_libgomp PROPERTIES IMPORTED_LOCATION ${torch_openmp})
  target_link_libraries(shardfit_torch INTERFACE shardfit_libgomp)
else()
  target_link_options(shardfit_torch INTERFACE -fopenmp)
endif()

find_path(SHARDFIT_GLOO_INCLUDE gloo/algorithm.h)
if(SHARDFIT_GLOO_INCLUDE)
  set(SHARDFIT_GLOO ON)
else()
  set(SHARDFIT_GLOO OFF)
  message(STATUS "Gloo: headers absent (Debian: libgloo-dev): ranks talk over shared memory on one host only")
endif()

if(SHARDFIT_CUDA)
  find_package(CUDAToolkit QUIET)
  find_path(SHARDFIT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(SHARDFIT_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ${torch_lib}/../../nvidia/nccl/lib)
  if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND SHARDFIT_NCCL_INCLUDE AND SHARDFIT_NCCL_LIBRARY AND EXISTS ${torch_lib}/libtorch_cuda.so)
    set(SHARDFIT_LIBTORCH_KIND CUDA)
    foreach(library c10_cuda torch_cuda)
      add_library(shardfit_lib${library} SHARED IMPORTED)
      set_target_properties(shardfit_lib${library} PROPERTIES IMPORTED_LOCATION ${torch_lib}/lib${library}.so)
    endforeach()
    add_library(shardfit_torch_cuda INTERFACE)
    target_include_directories(shardfit_torch_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${SHARDFIT_NCCL_INCLUDE})
    # cuFile, cuSPARSELt and NVSHMEM are needed by libtorch_cuda where it runs, not here.
    target_link_options(shardfit_torch_cuda INTERFACE "LINKER:--no-as-needed" "LINKER:--allow-shlib-undefined")
    target_link_libraries(shardfit_torch_cuda INTERFACE shardfit_torch shardfit_libtorch_cuda shardfit_libc10_cuda CUDA::cudart ${SHARDFIT_NCCL_LIBRARY})
    target_compile_definitions(shardfit_torch_cuda INTERFACE SHARDFIT_WITH_CUDA)
  else()
    message(WARNING "SHARDFIT_CUDA is on, but nvcc (${CUDAToolkit_NVCC_EXECUTABLE}), NCCL (${SHARDFIT_NCCL_LIBRARY}) or libtorch_cuda is missing: "
                    "shardfit-train is built for CPU ranks only")
  endif()
endif()
message(STATUS "LibTorch: ${SHARDFIT_LIBTORCH_KIND} (${SHARDFIT_LIBTORCH})")

# shardfit_runtime_part(NAME [LINK ...]): a part that uses LibTorch. Optimised in every preset: kernels at -O1 tell nothing.
function(shardfit_runtime_part name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  shardfit_part(runtime_${name} LINK ${arg_LINK} shardfit_torch)
  target_compile_options(shardfit_runtime_${name} PRIVATE $<$<CONFIG:Debug>:-O2>)
endfunction()
