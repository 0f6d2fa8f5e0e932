"""How many steps a frame is from its source, by the traces that frames carry. Pure.

A frame that carries on its parent's trace is one step behind it; one that was made from several has a trace
of its own, and is one step behind the deepest of them. The sources are at depth 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_MOST: Final = 5_000


def trace_depths(
    frames: Iterable[Sequence[int]], parents: Mapping[int, Sequence[int]], known: Mapping[str, Any]
) -> tuple[list[int], dict[str, Any]]:
    """The depth of each frame (trace, stream, time of its source), and what to remember of traces for the
    next ones.

    `known` is what an earlier call gave: trace → the deepest frame so far, and the streams it was seen in.
    """
    rows = list(frames)
    traces: dict[int, dict[int, int]] = {
        int(trace): {int(stream): depth for stream, depth in streams.items()}
        for trace, streams in known.items()
    }
    found = [0] * len(rows)
    for number in sorted(range(len(rows)), key=lambda one: rows[one][2]):
        trace, stream, _ = rows[number]
        streams = traces.setdefault(trace, {})
        if stream not in streams:
            above = [max(traces[one].values()) for one in parents.get(trace, ()) if traces.get(one)]
            streams[stream] = max([*streams.values(), *above], default=0) + 1
        found[number] = streams[stream]
    kept = list(traces)[-_MOST:]
    return found, {str(trace): {str(s): d for s, d in traces[trace].items()} for trace in kept}
