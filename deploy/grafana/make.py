"""Dashboards of the pipeline, of trainings, and of stores and nodes, in Grafana's classic model.

    python deploy/grafana/make.py deploy/grafana/dashboards

Schema 42 is the last one of that model; each Grafana from version 10 on converts it to its own.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 42
SOURCE = {"type": "prometheus", "uid": "${source}"}
"""Data source that the reader of a dashboard chooses."""
WIDTH = 24
"""Columns of a dashboard."""


@dataclass(frozen=True)
class Panel:
    title: str
    queries: Mapping[str, str]
    """PromQL -> legend of its series."""
    unit: str = "short"
    """Unit of Grafana, such as "bytes" or "percentunit"."""
    kind: str = "timeseries"
    """"timeseries", "stat" or "table"."""
    width: int = 12
    height: int = 8
    text: str = ""
    """Help; "" for none."""


RUN = '{run=~"$run"}'
DATASET = '{dataset=~"$dataset"}'
PIPELINE = (
    Panel(
        "Samples of the newest version",
        {f"penstock_version_samples{DATASET}": "{{dataset}}"},
    ),
    Panel(
        "Age of the newest version",
        {f"time() - penstock_version_timestamp_seconds{DATASET}": "{{dataset}}"},
        unit="s",
    ),
    Panel(
        "Batches by state",
        {f"sum by (standing) (penstock_pipeline_batches{DATASET})": "{{standing}}"},
    ),
    Panel(
        "Bytes of raw objects by state",
        {f"sum by (standing) (penstock_pipeline_bytes{DATASET})": "{{standing}}"},
        unit="bytes",
    ),
    Panel(
        "Backlog",
        {f"penstock_pipeline_backlog_objects{DATASET}": "{{dataset}}"},
        text="Objects that are neither trainable nor refused, nor stopped.",
    ),
    Panel(
        "Age of the backlog",
        {f"penstock_pipeline_backlog_oldest_seconds{DATASET}": "{{dataset}}"},
        unit="s",
    ),
    Panel(
        "Objects by outcome",
        {f"sum by (outcome) (penstock_pipeline_objects{DATASET})": "{{outcome}}"},
    ),
    Panel(
        "Refused objects by reason",
        {f"topk(10, sum by (code) (penstock_pipeline_refused_objects{DATASET}))": "{{code}}"},
    ),
    Panel(
        "Arrival to version",
        {f"penstock_pipeline_arrival_to_version_seconds{DATASET}": "{{dataset}} {{quantile}}"},
        unit="s",
    ),
    Panel(
        "Since the newest landing",
        {f"time() - penstock_pipeline_landed_timestamp_seconds{DATASET}": "{{dataset}}"},
        unit="s",
    ),
    Panel(
        "Newest version by the pipeline",
        {
            f"penstock_pipeline_version{DATASET}": "{{dataset}}",
            f"penstock_pipeline_version_samples{DATASET}": "{{dataset}} samples",
        },
        kind="stat",
    ),
    Panel(
        "Age of the newest version by the pipeline",
        {f"time() - penstock_pipeline_version_timestamp_seconds{DATASET}": "{{dataset}}"},
        unit="s",
        kind="stat",
    ),
    Panel(
        "Samples of slices",
        {f"topk(20, penstock_slice_samples{DATASET})": "{{dataset}}/{{slice}}"},
        width=WIDTH,
    ),
)
TRAININGS = (
    Panel(
        "State",
        {f"penstock_training_state{RUN} == 1": "{{run}} {{state}}"},
        kind="stat",
        width=WIDTH,
        height=5,
    ),
    Panel(
        "Steps a second",
        {f"deriv(penstock_training_step{RUN}[15m])": "{{run}}"},
    ),
    Panel(
        "Since the last step",
        {f"time() - penstock_training_last_step_timestamp_seconds{RUN}": "{{run}}"},
        unit="s",
    ),
    Panel(
        "Waiting for data",
        {f"penstock_training_waiting_ratio{RUN}": "{{run}}"},
        unit="percentunit",
        text="Share of the newest five minutes of steps. An alert fires above 10 % for 15 min.",
    ),
    Panel(
        "Goodput",
        {f"penstock_training_goodput_ratio{RUN}": "{{run}}"},
        unit="percentunit",
    ),
    Panel(
        "Starts and failed starts",
        {
            f"penstock_training_starts{RUN}": "{{run}} starts",
            f"penstock_training_failures{RUN}": "{{run}} failures",
        },
    ),
    Panel(
        "Age of the newest checkpoint",
        {f"time() - penstock_training_checkpoint_timestamp_seconds{RUN}": "{{run}}"},
        unit="s",
    ),
    Panel(
        "Steps since the newest checkpoint",
        {f"penstock_training_step{RUN} + 1 - penstock_training_checkpoint_step{RUN}": "{{run}}"},
    ),
    Panel(
        "Bad steps and samples",
        {
            f"penstock_training_not_finite_steps{RUN}": "{{run}} steps not finite",
            f"penstock_training_substituted{RUN}": "{{run}} samples substituted",
        },
    ),
)
STORES = (
    Panel(
        "Parts of the root that can be read",
        {"penstock_up": "{{part}}", "penstock_pipeline_up": "pipeline {{dataset}}"},
        kind="stat",
        height=5,
    ),
    Panel(
        "Suspect nodes",
        {"penstock_node_suspects": "nodes"},
        kind="stat",
        height=5,
    ),
    Panel(
        "Seconds of a scrape by part",
        {"penstock_scrape_seconds": "{{part}}"},
        unit="s",
    ),
    Panel(
        "Stored bytes, and bytes that retiring frees",
        {
            "penstock_dataset_stored_bytes": "{{dataset}}",
            "penstock_dataset_freed_bytes": "{{dataset}} frees",
        },
        unit="bytes",
        text="With `penstock metrics --cost`.",
    ),
    Panel(
        "GPU-hours of trainings that read a dataset",
        {"penstock_dataset_gpu_seconds / 3600": "{{dataset}}"},
        text="Of 90 days.",
    ),
    Panel(
        "Requests of trainings that read a dataset",
        {"penstock_dataset_requests": "{{dataset}}"},
        text="Of 90 days.",
    ),
    Panel(
        "Bytes of trainings that read a dataset",
        {"penstock_dataset_read_bytes": "{{dataset}}"},
        unit="bytes",
        text="Of 90 days.",
    ),
    Panel(
        "Prices",
        {
            "penstock_dataset_stored_price": "{{dataset}} stored, {{currency}} a month",
            "penstock_dataset_read_price": "{{dataset}} read, {{currency}} in 90 days",
        },
        text="With `penstock metrics --cost --prices FILE`.",
    ),
    Panel(
        "Alerts",
        {'ALERTS{alertstate="firing"}': ""},
        kind="table",
    ),
)
DASHBOARDS: Mapping[str, tuple[str, Sequence[Panel], str]] = {
    "pipeline": ("penstock: pipeline", PIPELINE, "dataset"),
    "trainings": ("penstock: trainings", TRAININGS, "run"),
    "stores": ("penstock: stores and nodes", STORES, ""),
}
"""Name of the file -> title, panels, and the label that a reader chooses by."""
VARIABLES = {"dataset": "penstock_version_samples", "run": "penstock_training_step"}
"""Label -> metric that has all of its values."""


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    title, panels, label = DASHBOARDS[name]
    variables = [_source_variable()]
    if label:
        variables.append(_label_variable(label))
    return {
        "uid": f"penstock-{name}",
        "title": title,
        "tags": ["penstock"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": _placed(panels),
    }


def _source_variable() -> dict[str, Any]:
    return {
        "name": "source",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _label_variable(label: str) -> dict[str, Any]:
    query = f"label_values({VARIABLES[label]}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,  # with each change of the time range
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the panels from left to right, then from top to bottom."""
    placed = []
    x = 0
    y = 0
    row_height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x = 0
            y += row_height
            row_height = 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append(_panel(panel, number, place))
        x += panel.width
        row_height = max(row_height, panel.height)
    return placed


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    targets = []
    for letter, (query, legend) in zip("ABCDEFGH", panel.queries.items(), strict=False):
        target: dict[str, Any] = {
            "refId": letter,
            "datasource": SOURCE,
            "expr": query,
            "legendFormat": legend or "__auto",
        }
        if panel.kind == "table":
            target |= {"format": "table", "instant": True}
        targets.append(target)
    body: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": dict(place),
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {},
    }
    if panel.kind == "stat":
        body["options"] = {"textMode": "value_and_name", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.text:
        body["description"] = panel.text
    return body


def dashboard_text(name: str) -> str:
    """Return the file of a dashboard."""
    return json.dumps(dashboard(name), indent=1) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    for name in DASHBOARDS:
        (folder / f"{name}.json").write_text(dashboard_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
