# Settings for the CMake run that compiles Aeron's C sources; .cargo/config.toml names this file.
#
# Static libraries that end up in a Python extension need -fPIC, and the crates that build them
# override CFLAGS.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Included after each project() call: replaces source files of Aeron that have a known flaw.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/aeron-patches.cmake")
