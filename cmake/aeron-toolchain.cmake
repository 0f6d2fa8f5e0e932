# Settings for the CMake run that compiles Aeron's C sources; .cargo/config.toml names this file.
#
# Static libraries that end up in a Python extension need -fPIC, and the crates that build them
# override CFLAGS.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Included after each project() call: replaces source files of Aeron that have a known flaw.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/aeron-patches.cmake")

# A plain Linux may lack libbsd and libuuid. Without them Aeron draws random numbers from the kernel.
# crates/dataplane/build.rs gives the linker empty libraries of these names.
foreach(found IN ITEMS BSDSTDLIB_H_EXISTS UUID_H_EXISTS LIBBSD_EXISTS LIBUUID_EXISTS UUID_GENERATE_PROTOTYPE_EXISTS)
    set(${found} OFF CACHE BOOL "Aeron is built without this library" FORCE)
endforeach()

# `make wheel` names the platform that it builds for; cargo passes the compilers.
if(DEFINED ENV{TENSORPOOL_WHEEL_TARGET})
    string(REPLACE "-" "_" target "$ENV{TENSORPOOL_WHEEL_TARGET}")
    string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "$ENV{TENSORPOOL_WHEEL_TARGET}")
    set(CMAKE_SYSTEM_NAME Linux)
    set(CMAKE_C_COMPILER "$ENV{CC_${target}}")
    set(CMAKE_CXX_COMPILER "$ENV{CXX_${target}}")
    # The compiler of a wheel knows where the headers and libraries of the platform are; the host's are wrong.
    set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
    set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
endif()
