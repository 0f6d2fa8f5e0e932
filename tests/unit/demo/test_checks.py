"""The joined ledger of the demo."""

from __future__ import annotations

from typing import Any

import pytest

from tensorpool.demo.checks import CameraEpoch, find_faults, viewer_ledgers
from tensorpool.demo.output import ledger_table
from tensorpool.demo.reports import ViewerLedger, ViewerReport


def report(*epochs: tuple[str, int, dict[str, int]]) -> ViewerReport:
    """A viewer's report: epoch, received frames, drops."""
    return ViewerReport(
        epochs={epoch: ViewerLedger(received, dropped) for epoch, received, dropped in epochs}
    )


def test_frames_are_received_dropped_or_in_flight() -> None:
    reports = {
        "viewer": report(("1", 9, {}), ("2", 5, {})),
        "slow model": report(("1", 3, {"skipped": 4, "epoch": 3}), ("2", 1, {"skipped": 4})),
    }
    killed = CameraEpoch("1", 10, viewer_ledgers("1", reports), was_killed=True)
    second = CameraEpoch("2", 5, viewer_ledgers("2", reports), published=4, unpublished={"back_pressured": 1})
    assert find_faults([killed, second], reports) == []
    assert [killed.in_flight(viewer) for viewer in killed.viewers.values()] == [1, 0]
    shown: Any = second.to_json()
    assert shown["viewers"]["slow model"]["dropped"] == {"skipped": 4}
    assert ledger_table([killed, second]).row_count == 6


@pytest.mark.parametrize(
    ("viewer", "was_killed", "fault"),
    [
        (ViewerLedger(8, {}), True, "accounts for 8 of 10 frames"),
        (ViewerLedger(11, {}), True, "accounts for 11 of 10 frames"),
        (ViewerLedger(9, {}), False, "accounts for 9 of 10 frames"),
        (ViewerLedger(10, {}, torn=2), False, "received 2 torn frames"),
        (ViewerLedger(10, {}, balanced=False), False, "viewer's frames do not add up"),
    ],
)
def test_viewer_ledger_that_does_not_add_up_is_a_fault(
    viewer: ViewerLedger, was_killed: bool, fault: str
) -> None:
    (text,) = CameraEpoch("1", 10, {"viewer": viewer}, was_killed=was_killed).faults()
    assert fault in text


def test_camera_ledger_that_does_not_add_up_is_a_fault() -> None:
    (text,) = CameraEpoch("1", 10, {}, published=8, unpublished={"not_connected": 1}).faults()
    assert text == "epoch 1: the camera's frames do not add up"


def test_epochs_have_to_grow_and_be_known() -> None:
    reports = {"viewer": report(("7", 3, {}))}
    epochs = [
        CameraEpoch("2", 0, viewer_ledgers("2", reports)),
        CameraEpoch("2", 0, viewer_ledgers("2", reports)),
    ]
    assert find_faults(epochs, reports) == [
        "epoch 2 is not above 2",
        "the viewer has epochs that no camera published: 7",
    ]
