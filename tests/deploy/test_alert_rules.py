"""Prometheus itself judges the alert rules: each fires on its history, and rests on another (Debian's prometheus)."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers.patience import PATIENCE_S

pytestmark = pytest.mark.server
REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
RUN = 'run="big-7"'
UP = {'penstock_up{part="slices"}': "1x300"}
RUNNING = {f'penstock_training_state{{{RUN},state="running"}}': "1x300"}
ENDED = {f'penstock_training_state{{{RUN},state="finished"}}': "1x300"}
Series = dict[str, str]
"""Series -> its values of each minute, as promtool takes them."""
MINUTES = 200
"""Minute at which the alerts are asked for."""
FIRES: dict[str, Series] = {
    "metrics-gone": {'penstock_up{part="slices"}': "1x150 0x100"},
    "batch-stopped": {'penstock_pipeline_batches{dataset="cats",standing="stopped"}': "0x150 1x100"},
    "backlog-old": {'penstock_pipeline_backlog_oldest_seconds{dataset="cats"}': "21601x300"},
    # Prometheus' clock begins at 0: a time before it is long ago.
    "nothing-arrives": {'penstock_pipeline_landed_timestamp_seconds{dataset="cats"}': "-172800x300"},
    "version-old": {'penstock_version_timestamp_seconds{dataset="cats"}': "-2592000x300"},
    "dataset-damaged": {'penstock_up{part="versions"}': "1x198 0x100"},
    "run-stalled": {f'penstock_training_state{{{RUN},state="stalled"}}': "0x190 1x100"},
    "run-failed": {f'penstock_training_state{{{RUN},state="failed"}}': "0x190 1x100"},
    "run-damaged": {f'penstock_training_state{{{RUN},state="damaged"}}': "0x190 1x100"},
    "run-restarting": {f"penstock_training_starts{{{RUN}}}": "5x170 6x10 7x10 8x100", **RUNNING},
    "loss-not-finite": {f"penstock_training_not_finite_steps{{{RUN}}}": "0x190 1x100", **RUNNING},
    "run-starved": {f"penstock_training_waiting_ratio{{{RUN}}}": "0.05x180 0.11x100", **RUNNING},
    "checkpoint-old": {f"penstock_training_checkpoint_timestamp_seconds{{{RUN}}}": "4000x300", **RUNNING},
    "samples-substituted": {f"penstock_training_substituted{{{RUN}}}": "0x190 3x100", **RUNNING},
    "node-suspect": {"penstock_node_suspects": "0x190 1x100"},
}
"""Alert -> history on which it fires."""
RESTS: dict[str, list[Series]] = {
    "metrics-gone": [
        {'penstock_up{part="slices"}': "1x195 0x100"},
        {'penstock_up{part="slices"}': "0x150 1x100"},
    ],
    "batch-stopped": [{'penstock_pipeline_batches{dataset="cats",standing="stopped"}': "1x150 0x100"}],
    "backlog-old": [{'penstock_pipeline_backlog_oldest_seconds{dataset="cats"}': "21599x300"}],
    "nothing-arrives": [{'penstock_pipeline_landed_timestamp_seconds{dataset="cats"}': "-160000x300"}],
    "version-old": [{'penstock_version_timestamp_seconds{dataset="cats"}': "-2579000x300"}],
    "dataset-damaged": [{'penstock_up{part="versions"}': "0x190 1x100"}],
    "run-stalled": [{f'penstock_training_state{{{RUN},state="stalled"}}': "1x190 0x100"}],
    "run-failed": [{f'penstock_training_state{{{RUN},state="failed"}}': "1x190 0x100"}],
    "run-damaged": [{f'penstock_training_state{{{RUN},state="damaged"}}': "1x190 0x100"}],
    "run-restarting": [
        {f"penstock_training_starts{{{RUN}}}": "5x180 6x10 7x100", **RUNNING},  # two starts
        {f"penstock_training_starts{{{RUN}}}": "5x100 6x10 7x10 8x200", **RUNNING},  # hours ago
        {f"penstock_training_starts{{{RUN}}}": "_x180 8x100", **RUNNING},  # Prometheus began to scrape
        {f"penstock_training_starts{{{RUN}}}": "5x170 6x10 7x10 8x100", **ENDED},
    ],
    "loss-not-finite": [
        {f"penstock_training_not_finite_steps{{{RUN}}}": "0x300", **RUNNING},
        {f"penstock_training_not_finite_steps{{{RUN}}}": "4x300", **ENDED},
    ],
    "run-starved": [
        {f"penstock_training_waiting_ratio{{{RUN}}}": "0.05x190 0.5x100", **RUNNING},  # ten minutes
        {f"penstock_training_waiting_ratio{{{RUN}}}": "0.09x300", **RUNNING},
        {f"penstock_training_waiting_ratio{{{RUN}}}": "0.5x300", **ENDED},
    ],
    "checkpoint-old": [
        {f"penstock_training_checkpoint_timestamp_seconds{{{RUN}}}": "5000x300", **RUNNING},
        {f"penstock_training_checkpoint_timestamp_seconds{{{RUN}}}": "0x300", **ENDED},
    ],
    "samples-substituted": [
        {f"penstock_training_substituted{{{RUN}}}": "0x300", **RUNNING},
        {f"penstock_training_substituted{{{RUN}}}": "3x300", **ENDED},
    ],
    "node-suspect": [{"penstock_node_suspects": "1x190 0x100"}],
}
"""Alert -> histories on which it rests."""


def history(series: Series, alert: str, *, fires: bool) -> dict[str, Any]:
    every = {**UP, **series}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in every.items()],
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else [],
            }
        ],
    }


def verdict(
    tests: list[dict[str, Any]], tmp_path: Path, rules: Path = RULES
) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program, "promtool is missing: run scripts/install-servers.sh"
    file = tmp_path / "histories.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "5m", "tests": tests}))
    command = [program, "test", "rules", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def rule_names() -> set[str]:
    body = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return {rule["alert"] for rule in body["groups"][0]["rules"]}


def test_each_alert_fires_and_rests(tmp_path: Path) -> None:
    assert FIRES.keys() == RESTS.keys() == rule_names()
    tests = [history(series, alert, fires=True) for alert, series in FIRES.items()]
    for alert, histories in RESTS.items():
        tests.extend(history(series, alert, fires=False) for series in histories)
    ended = verdict(tests, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_scrape_that_stops_is_an_alert(tmp_path: Path) -> None:
    series = {'penstock_up{part="slices"}': "1x180 _x100"}
    ended = verdict([history(series, "metrics-gone", fires=True)], tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("correct", "planted", "alert"),
    [
        ("penstock_training_waiting_ratio > 0.1", "penstock_training_waiting_ratio > 0.01", "run-starved"),
        (
            "starts[1h]) >= 3",
            "starts[3h]) >= 3",
            "run-restarting",
        ),
        ("penstock_node_suspects > 0", "penstock_node_suspects >= 0", "node-suspect"),
    ],
)
def test_planted_rule_is_caught(tmp_path: Path, correct: str, planted: str, alert: str) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert correct in text
    rules = tmp_path / "alerts.yaml"
    rules.write_text(text.replace(correct, planted))
    tests = [history(series, alert, fires=False) for series in RESTS[alert]]
    assert verdict(tests, tmp_path, rules).returncode != 0
