# The CUDA module, if JAXMD_CUDA (off, auto, on) asks for it and a compiler is found.
#
# nvcc is looked for on PATH, then in CUDA_HOME, then among the nvidia-cuda-nvcc wheels of the building Python.
set(JAXMD_CUDA "auto" CACHE STRING "CUDA module: off, auto (where nvcc is found) or on (an error without it)")
set(JAXMD_CUDA_ARCHITECTURES "sm_80;sm_90a;compute_90" CACHE STRING "sm_XX: machine code; compute_XX: PTX for newer GPUs")
string(TOLOWER "${JAXMD_CUDA}" mode)
if(NOT mode MATCHES "^(off|auto|on)$")
  message(FATAL_ERROR "jaxmd: JAXMD_CUDA is '${JAXMD_CUDA}'; it must be off, auto or on.")
endif()

function(no_cuda_module reason)
  if(mode STREQUAL "on")
    message(FATAL_ERROR "jaxmd: JAXMD_CUDA=on, but ${reason}. Install a CUDA toolkit of version 12 or later and put its "
      "nvcc on PATH, or set JAXMD_CUDA=off.")
  endif()
  message(STATUS "jaxmd: no CUDA module, because ${reason}")
endfunction()

if(mode STREQUAL "off")
  no_cuda_module("JAXMD_CUDA is off")
  return()
endif()

file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS *.cu *_cuda.cc)
if(NOT CUDA_SOURCES)
  no_cuda_module("there are no CUDA sources")
  return()
endif()

execute_process(COMMAND "${Python_EXECUTABLE}" -c
  "import importlib.util as u; s = u.find_spec('nvidia'); print(next(iter(s.submodule_search_locations or [])) if s else '')"
  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE NVIDIA_WHEELS ERROR_QUIET)
if(JAXMD_NVCC AND NOT EXISTS "${JAXMD_NVCC}")
  unset(JAXMD_NVCC CACHE)  # found by an earlier build, in a folder that is gone
endif()
find_program(JAXMD_NVCC nvcc HINTS ENV PATH NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
find_program(JAXMD_NVCC nvcc PATHS "$ENV{CUDA_HOME}/bin" "${NVIDIA_WHEELS}/cu13/bin" NO_DEFAULT_PATH)
if(NOT JAXMD_NVCC)
  no_cuda_module("no nvcc is on PATH, in CUDA_HOME or among the installed wheels")
  return()
endif()

set(CMAKE_CUDA_COMPILER "${JAXMD_NVCC}")
set(CMAKE_CUDA_ARCHITECTURES OFF)  # -gencode below: older CMake does not know sm_90a
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(JAXMD_NVCC STREQUAL "${NVIDIA_WHEELS}/cu13/bin/nvcc")
  # The wheels hold no unversioned libcudart.so, and lib where nvcc looks in lib64.
  set(CUDAToolkit_ROOT "${NVIDIA_WHEELS}/cu13")
  file(GLOB cudart "${CUDAToolkit_ROOT}/lib/libcudart.so.*")
  set(CUDA_CUDART "${cudart}" CACHE FILEPATH "")
  set(ENV{LIBRARY_PATH} "${CUDAToolkit_ROOT}/lib:$ENV{LIBRARY_PATH}")
endif()

foreach(arch ${JAXMD_CUDA_ARCHITECTURES})
  string(REGEX REPLACE "^(sm|compute)_" "" number "${arch}")
  list(APPEND GENCODE "-gencode=arch=compute_${number},code=${arch}")
endforeach()

# CMake's own check of a compiler ends the build where it fails; this one only goes without CUDA.
file(WRITE "${CMAKE_BINARY_DIR}/probe.cu" "#include <cuda_runtime.h>\n__global__ void probe_kernel() {}\n")
execute_process(COMMAND "${JAXMD_NVCC}" -std=c++17 ${GENCODE} -c probe.cu -o probe.o WORKING_DIRECTORY "${CMAKE_BINARY_DIR}"
  RESULT_VARIABLE status ERROR_VARIABLE complaint OUTPUT_VARIABLE complaint)
if(NOT status EQUAL 0)
  no_cuda_module("${JAXMD_NVCC} does not compile for ${JAXMD_CUDA_ARCHITECTURES}: ${complaint}")
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

nanobind_add_module(_cuda STABLE_ABI NB_STATIC NB_DOMAIN jaxmd cuda.cc)
target_include_directories(_cuda SYSTEM PRIVATE ${XLA_FFI_INCLUDE})
string(REPLACE ";" " " ARCHITECTURE_NAMES "${JAXMD_CUDA_ARCHITECTURES}")
target_compile_definitions(_cuda PRIVATE "JAXMD_CUDA_ARCHITECTURES=\"${ARCHITECTURE_NAMES}\"")
add_objects(_cuda cuda_handlers ${CUDA_SOURCES})
# The kernels name their roundings themselves; -fmad=false is for what a reader of the source would expect.
target_compile_options(cuda_handlers PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-fmad=false;-Xcompiler=-ffp-contract=off;${GENCODE}>")
target_include_directories(cuda_handlers SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(_cuda PRIVATE CUDA::cudart_static)
target_link_options(_cuda PRIVATE -Wl,--exclude-libs,ALL)
install(TARGETS _cuda LIBRARY DESTINATION jaxmd)
message(STATUS "jaxmd: CUDA module for ${JAXMD_CUDA_ARCHITECTURES} with ${JAXMD_NVCC}")
