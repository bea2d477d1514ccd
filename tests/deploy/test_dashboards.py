"""Dashboards and alert rules beside the list of metrics that are exported, both ways."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dagster_project import metrics
from penstock.metrics.conditions import BY_NAME
from penstock.metrics.families import GAUGES, PREFIX
from tests.servers.processes import python

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
DASHBOARDS = ("pipeline", "stores", "trainings")
NO_RULE = {"job-left", "training-over"}
"""Conditions that no metric shows: a sensor and the launcher send them."""


def export_names() -> set[str]:
    own = {PREFIX + name for name in GAUGES}
    return own | {metrics.PREFIX + name for name in metrics._GAUGES}


def dashboard(name: str) -> dict[str, Any]:
    body = json.loads((DEPLOY / "grafana" / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(body, dict)
    return body


def queries() -> Iterator[str]:
    for name in DASHBOARDS:
        body = dashboard(name)
        for panel in body["panels"]:
            for target in panel["targets"]:
                yield target["expr"]
        for variable in body["templating"]["list"]:
            yield variable.get("definition", "")


def rules() -> list[dict[str, Any]]:
    body = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
    own = body["groups"][0]["rules"]
    assert isinstance(own, list)
    return own


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\bpenstock_[a-z_]+", text))


def test_dashboards_and_rules_have_each_exported_metric_and_no_other() -> None:
    used = set[str]()
    for query in (*queries(), *(rule["expr"] for rule in rules())):
        used |= metric_names(query)
    assert used == export_names()


def test_each_condition_has_one_rule_with_its_severity() -> None:
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in rules()}
    assert len(severities) == len(rules())
    assert severities.keys() == BY_NAME.keys() - NO_RULE
    for name, severity in severities.items():
        assert severity == BY_NAME[name].severity
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == BY_NAME[rule["alert"]].runbook


def test_files_are_what_their_programs_make(tmp_path: Path) -> None:
    made_rules = python(DEPLOY / "prometheus" / "make.py", check=True, cwd=REPOSITORY).stdout
    assert made_rules == (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    python(DEPLOY / "grafana" / "make.py", tmp_path, check=True, cwd=REPOSITORY)
    for name in DASHBOARDS:
        stored = DEPLOY / "grafana" / "dashboards" / f"{name}.json"
        assert (tmp_path / f"{name}.json").read_text() == stored.read_text()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_is_of_the_classic_model(name: str) -> None:
    body = dashboard(name)
    assert body["schemaVersion"] == 42
    assert body["uid"] == f"penstock-{name}"
    cells = set[tuple[int, int]]()
    ids = [panel["id"] for panel in body["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in body["panels"]:
        assert panel["type"] in ("timeseries", "stat", "table")
        assert panel["targets"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells
        cells |= own
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${source}"}
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            names = metric_names(target["expr"])
            assert names or "ALERTS" in target["expr"]
            for metric in names:
                assert labels <= set(metric_labels(metric)), (panel["title"], metric)


def metric_labels(metric: str) -> tuple[str, ...]:
    name = metric.removeprefix(metrics.PREFIX)
    if name in metrics._GAUGES and metric.startswith(metrics.PREFIX):
        return metrics._GAUGES[name][1]
    return GAUGES[metric.removeprefix(PREFIX)][1]


def test_provisioning_names_the_dashboards_folder() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "penstock.yaml").read_text())["providers"]
    assert (provider["type"], provider["options"]["path"]) == ("file", "/var/lib/grafana/dashboards/penstock")
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
