# Named by .cargo/config.toml: static libraries that end up in a Python extension need -fPIC,
# and the crates that build them override CFLAGS.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
