"""Panels become Grafana dashboards, in the conventions of NoETL's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)

from config.panels import Panel, Row

SCHEMA_VERSION: Final = 36
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
OF: Final = 'job=~"$job", instance=~"$instance"'
"""The selector every query carries."""


def _targets(panel: Panel) -> list[Dataquery]:
    return [
        Dataquery().expr(query.replace("$of", OF)).legend_format(legend).ref_id(chr(ord("A") + number))
        for number, (legend, query) in enumerate(panel.queries)
    ]


def _thresholds(panel: Panel) -> ThresholdsConfig:
    green, red = "green", "red"
    steps = [Threshold(value=None, color=green)]
    if panel.alarm is not None:
        steps.append(Threshold(value=panel.alarm, color=red))
    if panel.floor is not None:
        steps = [Threshold(value=None, color=red), Threshold(value=panel.floor, color=green)]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _graph(panel: Panel) -> timeseries.Panel:
    legend = (
        VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    return timeseries.Panel().legend(legend).min(0).fill_opacity(8)


def _number(panel: Panel) -> stat.Panel:
    return (
        stat.Panel().reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).thresholds(_thresholds(panel))
    )


KINDS: Final[dict[str, Callable[[Panel], Any]]] = {"graph": _graph, "stat": _number}


def _panel(panel: Panel) -> Any:
    built = (
        KINDS[panel.kind](panel)
        .title(panel.title)
        .description(panel.tells)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(5 if panel.kind == "stat" else 8)
    )
    for target in _targets(panel):
        built = built.with_target(target)
    return built


def _variable(name: str, label: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .multi(True)
    )


def build(uid: str, title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """One dashboard, as Grafana reads it from a file."""
    board = (
        builders.Dashboard(title)
        .uid(uid)
        .tags(["application", "noetl"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .with_variable(
            builders.DatasourceVariable("datasource")
            .label("Data source")
            .type("prometheus")
            .current(VariableOption(text="VictoriaMetrics", value="VictoriaMetrics"))
        )
        .with_variable(_variable("job", "Job", "label_values(noetl_chain_build_info, job)"))
        .with_variable(
            _variable("instance", "Instance", 'label_values(noetl_chain_build_info{job=~"$job"}, instance)')
        )
        .link(
            builders.DashboardLink("NoETL chain")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["noetl"])
            .as_dropdown(True)
        )
    )
    for row in rows:
        board = board.with_row(builders.Row(row.title))
        for panel in row.panels:
            board = board.with_panel(_panel(panel))
    document: dict[str, Any] = JSONEncoder(sort_keys=True).default(board.build())
    document["schemaVersion"] = SCHEMA_VERSION
    return document
