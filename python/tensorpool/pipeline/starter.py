"""What `tensorpool pipeline init` writes: a definition that says what can be said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

_TEMPLATE = """\
# A pipeline: recordings to tables. Run it with: tensorpool pipeline run {name}
# Every key is in docs/reference/pipeline.md; `tensorpool pipeline validate {name}` checks what is here.

[pipeline]
recordings = {recordings}
out = {out}
# streams = [10000]              # none named: all, later ones too
# payload = "inline"             # tables that hold the bytes, and need no recording beside them
# format = "delta"               # needs the package deltalake
# compact = "always"             # merge small files as they come, not only when their day is over

# What frames have to be. One that is not goes to silver/rejects, with the reason.
# [[pipeline.rules]]
# streams = [10000]
# dtype = ["uint16"]
# shape = [1024, 0]              # 0: any size

# Frames of several streams that belong together: a row for each frame of the first.
# [[pipeline.alignments]]
# name = "stereo"
# streams = [10000, 10001]
# tolerance = "5ms"

[pipeline.quality]
interval = "10s"

[pipeline.statistics]
every = 1

# A numpy function of your own, from a module beside this file: gold/brightness.
# [[pipeline.functions]]
# name = "brightness"
# function = "looks:brightness"  # def brightness(array): return array.mean(), array.max()
# columns = "mean double, peak double"
"""


def definition(name: str, recordings: Sequence[Path], out: Path) -> str:
    """TOML with comments. Paths as they were given."""
    given = json.dumps([str(one) for one in recordings or [Path("recording")]], ensure_ascii=False)
    return _TEMPLATE.format(name=name, recordings=given, out=json.dumps(str(out), ensure_ascii=False))
