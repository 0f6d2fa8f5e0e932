"""The Grafana board is one that Grafana takes: what its importer looks at, and what a person sees."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from tools.grafana_dashboard import dashboard

BOARD: dict[str, Any] = json.loads(
    Path(__file__).parents[3].joinpath("deploy", "grafana", "tensorpool.json").read_text("utf-8")
)
PANELS = [one for one in BOARD["panels"] if one["type"] != "row"]
# Panels and units that every Grafana since 8 has without a plugin.
KINDS = {"row", "stat", "timeseries", "state-timeline"}
UNITS = {"short", "cps", "Bps", "bytes", "s"}
# Grafana's own, see "Global variables" in its manual.
GLOBAL = {"__rate_interval", "__all"}


def test_it_is_what_its_source_says() -> None:
    assert dashboard() == BOARD, "run: python -m tools.grafana_dashboard > deploy/grafana/tensorpool.json"


def test_it_can_be_imported() -> None:
    # An id would be one of the author's own Grafana; without one it gets the next.
    assert BOARD.get("id") is None
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", BOARD["uid"])
    assert BOARD["title"]
    assert BOARD["schemaVersion"] >= 36
    numbers = [one["id"] for one in BOARD["panels"]]
    assert sorted(set(numbers)) == sorted(numbers)
    assert {one["type"] for one in BOARD["panels"]} <= KINDS
    assert {one["fieldConfig"]["defaults"]["unit"] for one in PANELS} <= UNITS


def test_every_query_goes_to_the_data_source_that_was_chosen_and_uses_variables_that_there_are() -> None:
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert variables["stream"]["datasource"] == source
    for panel in PANELS:
        assert panel["datasource"] == source
        assert panel["targets"]
        names = [one["refId"] for one in panel["targets"]]
        assert len(set(names)) == len(names)
        for target in panel["targets"]:
            assert target["datasource"] == source
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert used <= GLOBAL | variables.keys(), target["expr"]
            # A legend names only labels that are left after the query's own aggregation.
            left = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            if left and "group_left" not in target["expr"]:
                kept = {label.strip() for label in left[0].split(",")}
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target


def test_panels_stand_side_by_side_on_a_grid_of_24_columns() -> None:
    places = [one["gridPos"] for one in BOARD["panels"]]
    for one in places:
        assert 0 <= one["x"] < one["x"] + one["w"] <= 24
        assert one["h"] > 0
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
