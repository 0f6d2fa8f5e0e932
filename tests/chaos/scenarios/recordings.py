"""Damaged recordings of every kind: flipped, zeroed, cut, lengthened, copied and missing files."""

from __future__ import annotations

import shutil

from tests.chaos.stage import Stage
from tests.unit.recording.damages import check_damage, damages, read_all, write_recording

SHARE = 2.0


def run(stage: Stage) -> None:
    """Damages copies of a recording; readers refuse or are right, and a repair mends or names the loss."""
    directory = stage.base / "recordings"
    whole = directory / "whole"
    directory.mkdir()
    try:
        write_recording(whole)
        content = read_all(whole)
        cases = list(damages(whole, stage.rng, 20))
        stage.rng.shuffle(cases)
        for path, damage, at in cases:
            if not stage.has_time:
                break
            try:
                check_damage(whole, content, path, damage, at, directory)
            except AssertionError as error:
                stage.checker.expect(False, str(error).splitlines()[0])
            stage.checker.count(f"recordings damaged: {damage.name}")
    finally:
        shutil.rmtree(directory)
