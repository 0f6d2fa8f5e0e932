"""The Grafana dashboard: the fields that Grafana's importer reads, its queries and its grid."""

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
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
# Panels and units that Grafana 8 and later have without a plugin.
KINDS = {"row", "stat", "timeseries", "state-timeline"}
UNITS = {"short", "cps", "Bps", "bytes", "s"}
# Grafana's own; "Global variables" in its manual.
GLOBAL = {"__rate_interval", "__all"}


def test_dashboard_is_up_to_date() -> None:
    assert dashboard() == BOARD, "run: python -m tools.grafana_dashboard > deploy/grafana/tensorpool.json"


def test_dashboard_can_be_imported() -> None:
    # Without an id, Grafana assigns one.
    assert BOARD.get("id") is None
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", BOARD["uid"])
    assert BOARD["title"]
    assert BOARD["schemaVersion"] >= 36
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert sorted(set(ids)) == sorted(ids)
    assert {panel["type"] for panel in BOARD["panels"]} <= KINDS
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in PANELS} <= UNITS


def test_queries_use_the_chosen_data_source_and_known_variables() -> None:
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert variables["stream"]["datasource"] == source
    for panel in PANELS:
        assert panel["datasource"] == source
        assert panel["targets"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)
        for target in panel["targets"]:
            assert target["datasource"] == source
            used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert used <= GLOBAL | variables.keys(), target["expr"]
            # A legend may use only the labels that the query's aggregation keeps.
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            if grouped and "group_left" not in target["expr"]:
                kept = {label.strip() for label in grouped[0].split(",")}
                assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target


def test_panels_do_not_overlap_on_a_grid_of_24_columns() -> None:
    positions = [panel["gridPos"] for panel in BOARD["panels"]]
    for position in positions:
        assert 0 <= position["x"] < position["x"] + position["w"] <= 24
        assert position["h"] > 0
    for first, second in itertools.combinations(positions, 2):
        beside = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        above = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert beside or above, (first, second)
