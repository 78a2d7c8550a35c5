"""What is generated is what is committed, and its queries name series that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from config.generate import GRAFANA, KIND, PROD, generated
from sidecar.telemetry.metrics import Metrics

FILES: Final = dict(generated())
BOARDS: Final = [path for path in FILES if path.parent == GRAFANA]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_committed_file_is_the_generated_one(path: Path) -> None:
    assert path.read_text() == FILES[path], "run `python -m config.generate`"


def test_no_dashboard_is_left_over() -> None:
    assert sorted(GRAFANA.glob("*")) == sorted(BOARDS)


def _queries(board: dict[str, Any]) -> list[str]:
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert all(panel["description"] and panel["targets"] for panel in panels)
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_names_exported_series(path: Path) -> None:
    exported = {sample.name for family in Metrics(replicas=1).registry.collect() for sample in family.samples}
    for query in _queries(json.loads(path.read_text())):
        named = set(re.findall(r"noetl_chain_\w+", query))
        assert named, query
        assert named <= exported, query
        assert '$job"' in query


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_follows_the_conventions_of_noetl(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["schemaVersion"] == 36
    assert board["refresh"] == "30s"
    assert board["uid"] == path.stem
    assert re.fullmatch(r"noetl-[a-z-]+", board["uid"])
    assert board["tags"] == ["application", "noetl"]
    source = board["templating"]["list"][0]
    assert source["type"] == "datasource"
    assert source["current"]["value"] == "VictoriaMetrics"


def test_divergences_never_stand_without_coverage() -> None:
    for path in BOARDS:
        board = json.loads(path.read_text())
        for title, wanted in (("Divergences", "Coverage 1 h"), ("Certificate divergences", "Coverage 1 h")):
            rows = {panel["title"]: panel["gridPos"]["y"] for panel in board["panels"]}
            if title in rows:
                assert rows[wanted] == rows[title]


def test_both_clusters_have_the_same_rules() -> None:
    kind, prod = (yaml.safe_load(file.read_text()) for file in (KIND / "vmrule.yaml", PROD / "rules.yaml"))
    assert kind["spec"] == prod["spec"]
    assert (kind["kind"], prod["kind"]) == ("VMRule", "Rules")


def test_a_dashboard_of_the_cluster_is_the_one_of_the_file() -> None:
    for document in yaml.safe_load_all((KIND / "dashboards.yaml").read_text()):
        assert document["metadata"]["namespace"] == "vmstack"
        assert document["metadata"]["labels"] == {"grafana_dashboard": "1", "grafana_folder": "NoETL"}
        ((name, text),) = document["data"].items()
        assert text == (GRAFANA / name).read_text()
