"""The joined ledger of the demo: what adds up, and what does not."""

from __future__ import annotations

import pytest

from tensorpool.demo.checks import CameraEpoch, ViewerLedger, all_faults, pages_of
from tensorpool.demo.output import ledger_table


def ledger(*pages: tuple[str, int, dict[str, int]]) -> dict:
    return {
        "pages": [
            {"epoch": epoch, "received": received, "dropped": dropped, "torn": 0, "balanced": True}
            for epoch, received, dropped in pages
        ]
    }


def test_frames_are_received_or_dropped_or_were_in_flight() -> None:
    seen = {
        "viewer": ledger(("1", 9, {}), ("2", 5, {})),
        "slow model": ledger(("1", 3, {"skipped": 4, "epoch": 3}), ("2", 1, {"skipped": 4})),
    }
    killed = CameraEpoch("1", 10, pages_of("1", seen), was_killed=True)
    second = CameraEpoch("2", 5, pages_of("2", seen), published=4, unpublished={"back_pressured": 1})
    assert all_faults([killed, second], seen) == []
    assert [killed.in_flight(page) for page in killed.pages.values()] == [1, 0]
    assert second.as_json()["viewers"]["slow model"]["dropped"] == {"skipped": 4}
    assert ledger_table([killed, second]).row_count == 6


@pytest.mark.parametrize(
    ("page", "was_killed", "fault"),
    [
        (ViewerLedger(8, {}), True, "accounts for 8 of 10 frames"),
        (ViewerLedger(11, {}), True, "accounts for 11 of 10 frames"),
        (ViewerLedger(9, {}), False, "accounts for 9 of 10 frames"),
        (ViewerLedger(10, {}, torn=2), False, "saw 2 torn frames"),
        (ViewerLedger(10, {}, balanced=False), False, "viewer's frames do not add up"),
    ],
)
def test_what_does_not_add_up_is_said(page: ViewerLedger, was_killed: bool, fault: str) -> None:
    (said,) = CameraEpoch("1", 10, {"viewer": page}, was_killed=was_killed).faults()
    assert fault in said


def test_a_camera_that_lost_count_is_a_fault() -> None:
    (said,) = CameraEpoch("1", 10, {}, published=8, unpublished={"not_connected": 1}).faults()
    assert said == "epoch 1: the camera's frames do not add up"


def test_an_epoch_has_to_grow_and_nobody_may_hear_of_others() -> None:
    seen = {"viewer": ledger(("7", 3, {}))}
    books = [CameraEpoch("2", 0, pages_of("2", seen)), CameraEpoch("2", 0, pages_of("2", seen))]
    assert all_faults(books, seen) == [
        "epoch 2 is not above 2",
        "the viewer heard of epochs that nobody filmed: 7",
    ]
