"""Finds the camera without knowing its stream id. Start it before or after the camera."""

import tensorpool as tp

with tp.open() as ctx, ctx.consumer(name="camera-1", tags=["calibrated"], find_timeout=60) as frames:
    for frame, corner in frames.map(lambda frame: frame.array[0, 0]):
        print(f"stream {frame.stream_id} frame {frame.seq}: {corner}", flush=True)
        if frame.seq > 20:
            break
    for stream in ctx.discover(data_source_id=4711):
        print(
            f"{stream.name}: stream {stream.stream_id} of {stream.driver_instance_id}, {sorted(stream.tags)}"
        )
