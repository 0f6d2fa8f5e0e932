# Corrections of Aeron's C sources, applied to copies while they are compiled.
#
# The sources lie in cargo's registry, which is shared and read-only. So each corrected file is written
# to the build directory, and the targets compile that copy instead. A correction whose text is not found as
# often as expected stops the build: a newer Aeron has changed the place, and a developer checks whether it is
# still needed.

cmake_policy(VERSION 3.30)

function(tensorpool_patch_aeron)
    if(NOT TARGET aeron_static AND NOT TARGET aeron_driver_static)
        return() # one of the programs that CMake compiles to try the compiler
    endif()

    # A datagram whose place in the stream was forged or changed on its way may lie across the border of two
    # frames. A reader then takes bytes of a payload for the length of a frame: one beyond the term, or
    # shorter than a header, which makes the length of its payload wrap around. Reading it ends the process.
    # The stream stands still instead.
    set(directory "${CMAKE_SOURCE_DIR}/aeron-client/src/main/c")
    tensorpool_replace_source("${directory}" aeron_image.c 5
        "if (frame_length <= 0)"
        "if (frame_length < (int32_t)AERON_DATA_HEADER_LENGTH || frame_length > capacity - (int32_t)((const uint8_t *)frame - term_buffer))")

    # A position before the first term indexes the term buffers with -1. The media driver makes none (below);
    # one of another make may.
    tensorpool_replace_source("${directory}" aeron_image.c 4
        "    const size_t index = aeron_logbuffer_index_by_position(initial_position,"
        "    if (initial_position < 0)
    {
        return 0;
    }
    const size_t index = aeron_logbuffer_index_by_position(initial_position,")

    set(directory "${CMAKE_SOURCE_DIR}/aeron-driver/src/main/c")
    if(NOT TARGET aeron_driver_static OR NOT EXISTS "${directory}")
        return() # the client is built alone
    endif()

    # A NAK names a term and an offset. One for a term before the first gives a negative position, which
    # passes the test against the resend window of a young publication and then indexes the term buffers
    # with -1: a single datagram ends the process.
    tensorpool_replace_source("${directory}" aeron_network_publication.c 1
        "if (bottom_resend_window <= resend_position && resend_position < sender_position)"
        "if (0 <= resend_position && bottom_resend_window <= resend_position && resend_position < sender_position)")

    # A SETUP whose active term is before the first one makes an image with a negative position: a single
    # datagram ends each process that subscribes there.
    tensorpool_replace_source("${directory}" media/aeron_receive_channel_endpoint.c 1
        "        setup_header->term_offset >= 0 &&"
        "        (int32_t)((uint32_t)setup_header->active_term_id - (uint32_t)setup_header->initial_term_id) >= 0 &&
        setup_header->term_offset >= 0 &&")

    # The directory is made for all users, and its mode can be set only afterwards. Another user who opens
    # its subdirectories in between continues to read all messages.
    tensorpool_replace_source("${directory}" aeron_driver.c 1
        "if (aeron_mkdir_recursive(dirname, S_IRWXU | S_IRWXG | S_IRWXO) != 0)"
        "if (aeron_mkdir_recursive(dirname, S_IRWXU) != 0)")

    # The same lengths are read where a receiver looks for gaps. It looks no further than the first that
    # cannot be true: what lies behind it is unknown, and a NAK would be answered without end.
    tensorpool_replace_source("${directory}" aeron_loss_detector.c 1
        "        rebuild_offset = aeron_term_gap_scanner_scan_for_gap("
        "${TENSORPOOL_BELIEVABLE_LIMIT}        rebuild_offset = aeron_term_gap_scanner_scan_for_gap(")
endfunction()

set(TENSORPOOL_BELIEVABLE_LIMIT [[
        int32_t believable_offset = rebuild_offset;
        while (believable_offset < limit_offset)
        {
            const aeron_frame_header_t *believable = (const aeron_frame_header_t *)(buffer + believable_offset);
            int32_t believable_length;
            AERON_GET_ACQUIRE(believable_length, believable->frame_length);
            if (0 == believable_length)
            {
                break;
            }
            if (believable_length < (int32_t)AERON_DATA_HEADER_LENGTH ||
                believable_length > limit_offset - believable_offset)
            {
                return believable_offset;
            }
            believable_offset += AERON_ALIGN(believable_length, AERON_LOGBUFFER_FRAME_ALIGNMENT);
        }

]])

function(tensorpool_replace_source directory name count old new)
    set(copy "${CMAKE_BINARY_DIR}/tensorpool/${name}")
    get_property(corrected GLOBAL PROPERTY tensorpool_corrected)
    if(name IN_LIST corrected)
        file(READ "${copy}" text)
    else()
        file(READ "${directory}/${name}" text)
        set_property(GLOBAL APPEND PROPERTY tensorpool_corrected "${name}")
    endif()
    string(LENGTH "${text}" length)
    string(LENGTH "${old}" old_length)
    string(REPLACE "${old}" "" without "${text}")
    string(LENGTH "${without}" rest)
    math(EXPR found "(${length} - ${rest}) / ${old_length}")
    if(NOT found EQUAL count)
        message(FATAL_ERROR "cmake/aeron-patches.cmake: ${name} has ${found} lines \"${old}\", not ${count}")
    endif()
    string(REPLACE "${old}" "${new}" text "${text}")
    file(CONFIGURE OUTPUT "${copy}" CONTENT "${text}" @ONLY)
    get_filename_component(place "${directory}/${name}" DIRECTORY)
    foreach(target IN ITEMS aeron aeron_static aeron_driver aeron_driver_static)
        if(TARGET ${target})
            get_target_property(sources ${target} SOURCES)
            list(TRANSFORM sources REPLACE "^(.*/)?${name}$" "${copy}")
            set_target_properties(${target} PROPERTIES SOURCES "${sources}")
            target_include_directories(${target} PRIVATE "${directory}" "${place}")
        endif()
    endforeach()
endfunction()

# The targets exist at the end of the top directory's own file.
cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL tensorpool_patch_aeron)
