"""Reports of the demo's processes: a line gives the same report back."""

from __future__ import annotations

import pytest

from tensorpool.demo.reports import (
    CameraReady,
    DriverSample,
    LabLedger,
    Mapped,
    ProcessReport,
    ProcessSample,
    RecordedSpan,
    ViewerLedger,
    ViewerReport,
    parse_line,
)

REPORTS: list[ProcessReport] = [
    CameraReady(pid=7, lease="9223372036854775807", epoch=None, at_ns=5),
    Mapped(key="18446744073709551615"),
    ProcessSample(frames=3, dropped={"late": 1}, latency_us=1.5),
    DriverSample(leases=1, bytes=2, epoch=None, directory=None),
    ViewerReport(epochs={"1": ViewerLedger(3, {"gap": 1}, span=4)}),
    LabLedger(
        bridge={
            "published": 1,
            "delivered": 1,
            "dropped": {"sender": 0, "network": 0, "receiver": 0},
            "exact": True,
            "whole": True,
        },
        checked=1,
        wrong=0,
        viewer=ViewerLedger(1, span=1),
        recorder=[RecordedSpan(1, {}, 1, True)],
        paths=[],
        faults=[],
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_report_survives_its_line(report: ProcessReport) -> None:
    line = report.to_line()
    assert line.count("\n") == 1
    assert parse_line(line) == report


def test_half_a_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="Unterminated"):
        parse_line(REPORTS[0].to_line()[:20])
