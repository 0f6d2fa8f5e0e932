"""A full region base and a full Aeron directory, again and again, with room made in between."""

from __future__ import annotations

import contextlib
import time

from tests.chaos.stage import Stage
from tests.ports import free_port

SHARE = 1.5
MEMORY_BYTES = 192 << 20
_SETTLE_S = 0.5
_BRIDGE = """
[bridge]
instance_id = "chaos"
payload_channel = "aeron:udp?endpoint=127.0.0.1:{payload}"
control_channel = "aeron:udp?endpoint=127.0.0.1:{control}"
forward_metadata = false

[[bridge.mappings]]
source_stream_id = {source}
dest_stream_id = 30000
"""


def run(stage: Stage) -> None:
    """Another program takes all shared memory. Running streams continue; what starts then gets an error."""
    rng = stage.rng
    filler = stage.base.parent / "filler"
    stage.start("producer", hz=300)
    stage.start("consumer")
    stage.start("recorder", root=str(stage.work / "recording"))
    stage.checker.expect(stage.frames_flow(), "no frames flow before the memory is filled")
    bridge = _BRIDGE.format(payload=free_port(), control=free_port(), source=stage.stream_id)
    roles = [stage.start_role("registry"), stage.start_role("supervisor"), stage.start_role("bridge", bridge)]
    # They take their memory while they start.
    for role in roles:
        stage.checker.expect(stage.role_is_ready(role), f"the {role.role} is not ready")
    stage.restart_clock()
    try:
        while stage.has_time:
            with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 20)):
                    pass
            stage.checker.count("memory filled")
            # Clients that come while nothing is free: they must not harm those that run.
            late_programs = [stage.start("consumer") for _ in range(rng.randrange(3))]
            late_programs += [stage.start("producer", hz=50) for _ in range(rng.randrange(2))]
            time.sleep(rng.uniform(_SETTLE_S, 4 * _SETTLE_S))
            stage.programs_live("while the memory was full", except_for=late_programs)
            for role in roles:
                status = role.process.poll()
                stage.checker.expect(status is None, f"the {role.role} has ended with {status}")
            filler.unlink()
            stage.checker.count("room made")
            for program in late_programs:
                stage.kill(program)
            stage.checker.expect(stage.frames_flow(), "no frames flow after room was made")
    finally:
        filler.unlink(missing_ok=True)
        for role in roles:
            stage.end_role(role)
    stage.end_programs()
    stage.checker.recording(stage.work / "recording")
