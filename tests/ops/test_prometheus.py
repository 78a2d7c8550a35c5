"""The Prometheus rules: checked and run by promtool, told apart by a runbook, over series that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from sidecar.telemetry.metrics import Metrics

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = ROOT / "config" / "prometheus"
RULES: Final = sorted((CONFIG / "rules").glob("*.yml"))
SUFFIXES: Final = ("_bucket", "_count", "_sum")


def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONFIG / "rules" / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS: Final = rules("alerts.yml")
RECORDED: Final = {rule["record"] for rule in rules("recording.yml")}


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed; it comes with Prometheus")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, cwd=CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", *(str(file) for file in RULES))


def test_every_alert_fires_and_stays_quiet_as_its_case_says() -> None:
    assert "SUCCESS" in promtool("test", "rules", "tests/alerts.yml")


def test_every_alert_has_a_case_for_both() -> None:
    cases = yaml.safe_load((CONFIG / "tests" / "alerts.yml").read_text())["tests"]
    fires = {
        case["alert_rule_test"][0]["alertname"]: bool(case["alert_rule_test"][0]["exp_alerts"])
        for case in cases
        if "alert_rule_test" in case and case["name"].endswith(" fires")
    }
    quiet = {
        case["alert_rule_test"][0]["alertname"]: not case["alert_rule_test"][0]["exp_alerts"]
        for case in cases
        if "alert_rule_test" in case and case["name"].endswith(" is quiet")
    }
    names = {alert["alert"] for alert in ALERTS}
    assert fires == quiet == dict.fromkeys(names, True)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["labels"]["component"] == "noetl-chain"
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"]
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    sections = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    section = [text for text in sections if text.partition("\n")[0].lower() == anchor]
    assert len(section) == 1
    for part in ("**What it looks like.**", "**What to check.**", "**What to do.**"):
        assert part in section[0]


def test_rules_name_only_series_that_are_exported_or_recorded() -> None:
    exported = {sample.name for family in Metrics(replicas=1).registry.collect() for sample in family.samples}
    for rule in (*ALERTS, *rules("recording.yml")):
        named = set(re.findall(r"(?:\w+:)*noetl_chain_\w+(?::\w+)*", rule["expr"]))
        assert named or rule["expr"].startswith("up"), rule
        assert named <= exported | RECORDED, rule["expr"]


def test_the_runbook_has_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)
    assert sections == [*dict.fromkeys(sections)]
    assert set(sections) == {alert["alert"] for alert in ALERTS}
