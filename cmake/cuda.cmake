# CUDA: kernels/cuda by nvcc into the library, and the same sources as C++ for tests/cuda_on_cpu.
#   -DMPR_CUDA=AUTO|ON|OFF          AUTO: when nvcc (12 or newer) is found
#   -DMPR_CUDA_ARCHITECTURES=80;90  default: all that are meant; the last one also as PTX for later GPUs
# nvcc is called as it is: the C compiler and its flags stay those of the rest.
set(MPR_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set(MPR_CUDA_ARCHITECTURES "75;80;86;89;90;100;120" CACHE STRING "Compute capabilities to build kernels for")
set(MPR_NVCC_LAUNCHER "" CACHE STRING "Put before nvcc, such as ccache")
find_program(MPR_NVCC nvcc PATHS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin /usr/local/cuda-13.0/bin)
set(MPR_CUDA_ROOT "")
if(MPR_NVCC)
  get_filename_component(nvcc_real ${MPR_NVCC} REALPATH)
  get_filename_component(nvcc_bin ${nvcc_real} DIRECTORY)
  get_filename_component(MPR_CUDA_ROOT ${nvcc_bin} DIRECTORY)
endif()
find_path(MPR_CUDA_INCLUDE cuda_runtime_api.h PATHS ${MPR_CUDA_ROOT}/include /usr/local/cuda/include)
find_library(MPR_CUDART_STATIC cudart_static PATHS ${MPR_CUDA_ROOT}/lib64 ${MPR_CUDA_ROOT}/lib /usr/local/cuda/lib64)
set(MPR_WITH_CUDA OFF)
if(NOT MPR_CUDA STREQUAL "OFF" AND NOT MPR_MINIMAL)
  if(MPR_NVCC AND MPR_CUDA_INCLUDE AND MPR_CUDART_STATIC)
    set(MPR_WITH_CUDA ON)
  elseif(NOT MPR_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "MPR_CUDA is ${MPR_CUDA}, but nvcc, cuda_runtime_api.h or libcudart_static.a was not found: set CUDA_HOME, or -DMPR_CUDA=OFF")
  endif()
endif()

file(GLOB MPR_CUDA_C CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.c)
file(GLOB MPR_CUDA_CU CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/cuda/*.cu)

# Objects of the room, to be linked into the library; sets MPR_CUDA_OBJECTS.
function(mpr_cuda_room)
  set(MPR_CUDA_OBJECTS "" PARENT_SCOPE)
  if(NOT MPR_WITH_CUDA)
    return()
  endif()
  add_library(mpr_cuda OBJECT ${MPR_CUDA_C})
  mpr_flags(mpr_cuda)
  target_include_directories(mpr_cuda SYSTEM PRIVATE ${MPR_CUDA_INCLUDE})
  set(codes "")
  foreach(arch ${MPR_CUDA_ARCHITECTURES})
    list(APPEND codes -gencode arch=compute_${arch},code=sm_${arch})
    set(newest ${arch})
  endforeach()
  list(APPEND codes -gencode arch=compute_${newest},code=compute_${newest})
  set(host -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra,-Wno-missing-field-initializers)
  if(MPR_WERROR)
    list(APPEND codes -Werror all-warnings)
  endif()
  set(objects "")
  foreach(source ${MPR_CUDA_CU})
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    set(own "")
    if(name STREQUAL "update.cu") # the bits of the CPU: every operation rounds
      set(own -fmad=false)
    endif()
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${MPR_NVCC_LAUNCHER} ${MPR_NVCC} -c -O3 -std=c++20 ${own} ${codes} -Xcompiler ${host}
              -DMPR_MINIMAL=0 -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/include
              -MD -MT ${object} -MF ${object}.d -o ${object} ${source}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object cuda/${name}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_custom_target(mpr_cuda_kernels DEPENDS ${objects})
  set(MPR_CUDA_OBJECTS $<TARGET_OBJECTS:mpr_cuda> ${objects} PARENT_SCOPE)
endfunction()

# The kernels and the device on a CUDA that runs on the CPU: for tests only. Needs the toolkit's headers
# and a C++ compiler; MPR_CUDA_ON_CPU tells whether it is there.
include(CheckLanguage)
check_language(CXX)
set(MPR_CUDA_ON_CPU OFF)
if(MPR_CUDA_INCLUDE AND CMAKE_CXX_COMPILER AND MPR_TESTS AND NOT MPR_MINIMAL)
  set(MPR_CUDA_ON_CPU ON)
  enable_language(CXX)
endif()
function(mpr_cuda_shim)
  if(NOT MPR_CUDA_ON_CPU)
    return()
  endif()
  file(GLOB shim CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda_on_cpu/*.cpp)
  set(device ${MPR_CUDA_C})
  list(FILTER device EXCLUDE REGEX "/lib_[^/]*\\.c$") # libraries that the shim answers for
  mpr_shim_objects(mpr_cuda_shim ${shim} ${device} ${MPR_CUDA_CU})
endfunction()
# Sources in C, C++ and CUDA (as C++ against the shim).
function(mpr_shim_objects target)
  set(cu ${ARGN})
  list(FILTER cu INCLUDE REGEX "\\.cu$")
  set_source_files_properties(${cu} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-include;${CMAKE_SOURCE_DIR}/tests/cuda_on_cpu/shim.h")
  add_library(${target} OBJECT ${ARGN})
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE MPR_MINIMAL=0 MPR_CUDA_ON_CPU=1)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
  target_include_directories(mpr_cuda_shim SYSTEM PRIVATE ${MPR_CUDA_INCLUDE})
  target_compile_features(${target} PRIVATE cxx_std_20)
  # "-x c++" stands behind -c on purpose: the driver would take .cu for its own language
  target_compile_options(${target} PRIVATE -ffp-contract=off -fno-math-errno -Wall -Wextra -Wno-missing-field-initializers
    $<$<BOOL:${MPR_WERROR}>:-Werror> $<$<COMPILE_LANGUAGE:CXX>:-xc++> $<$<COMPILE_LANGUAGE:CXX>:-O2>)
endfunction()

# The tools once more with that device linked in: build/…/shim/mpr-run and so on.
function(mpr_shim_tools)
  if(NOT MPR_CUDA_ON_CPU OR NOT MPR_TOOLS)
    return()
  endif()
  file(GLOB shared CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/common/*.c)
  foreach(tool train run bench inspect)
    add_executable(shim-${tool} ${CMAKE_SOURCE_DIR}/tools/mpr_${tool}.c ${shared} $<TARGET_OBJECTS:mpr_cuda_shim>)
    mpr_flags(shim-${tool})
    set_target_properties(shim-${tool} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/shim OUTPUT_NAME mpr-${tool} LINKER_LANGUAGE CXX)
    target_link_libraries(shim-${tool} PRIVATE mpr_all m PkgConfig::POPT PkgConfig::JANSSON PkgConfig::YAML)
  endforeach()
endfunction()
