# Corrections of Aeron's C sources, applied to copies while they are compiled.
#
# The sources lie in cargo's registry, which is shared and read-only. So each corrected file is written
# to the build directory, and the targets compile that copy instead. A correction whose text is not found
# stops the build: a newer Aeron has changed the place, and a developer checks whether it is still needed.

cmake_policy(VERSION 3.30)

function(tensorpool_patch_aeron)
    set(directory "${CMAKE_SOURCE_DIR}/aeron-driver/src/main/c")
    if(NOT TARGET aeron_driver_static OR NOT EXISTS "${directory}")
        return() # the client is built alone
    endif()

    # A NAK names a term and an offset. One for a term before the first gives a negative position, which
    # passes the test against the resend window of a young publication and then indexes the term buffers
    # with -1: a single datagram ends the process.
    tensorpool_replace_source("${directory}" aeron_network_publication.c
        "if (bottom_resend_window <= resend_position && resend_position < sender_position)"
        "if (0 <= resend_position && bottom_resend_window <= resend_position && resend_position < sender_position)")

    # The directory is made for all users, and its mode can be set only afterwards. Another user who opens
    # its subdirectories in between continues to read all messages.
    tensorpool_replace_source("${directory}" aeron_driver.c
        "if (aeron_mkdir_recursive(dirname, S_IRWXU | S_IRWXG | S_IRWXO) != 0)"
        "if (aeron_mkdir_recursive(dirname, S_IRWXU) != 0)")
endfunction()

function(tensorpool_replace_source directory name old new)
    file(READ "${directory}/${name}" text)
    string(FIND "${text}" "${old}" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "cmake/aeron-patches.cmake: ${name} has no line \"${old}\"")
    endif()
    string(REPLACE "${old}" "${new}" text "${text}")
    set(copy "${CMAKE_BINARY_DIR}/tensorpool/${name}")
    file(CONFIGURE OUTPUT "${copy}" CONTENT "${text}" @ONLY)
    foreach(target IN ITEMS aeron_driver aeron_driver_static)
        if(TARGET ${target})
            get_target_property(sources ${target} SOURCES)
            list(TRANSFORM sources REPLACE "^(.*/)?${name}$" "${copy}")
            set_target_properties(${target} PROPERTIES SOURCES "${sources}")
            target_include_directories(${target} PRIVATE "${directory}")
        endif()
    endforeach()
endfunction()

# The targets exist at the end of the top directory's own file.
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL tensorpool_patch_aeron)
