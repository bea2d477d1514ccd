"""Alert rules over the metrics of `penstock metrics` and of the pipeline's exporter.

    python deploy/prometheus/make.py > deploy/prometheus/alerts.yaml

Names, severities and limits come from the list of conditions. `training-over` and `job-left` have no rule: the launcher
and the sensor `penstock_jobs` send them.
"""

import sys
from dataclasses import dataclass

from penstock.metrics.conditions import (
    BY_NAME,
    CHECKPOINT_OLD_S,
    ENDED_STATES,
    RESTARTS,
    STARVED_S,
    STARVED_SHARE,
)

HEAD = """\
# Prometheus rules over the metrics of `penstock metrics` and `python -m dagster_project.metrics`, by
# deploy/prometheus/make.py. Each alert is a heading in docs/operations.md.
groups:
  - name: penstock
    rules:
"""
ENDED = f'penstock_training_state{{state=~"{"|".join(ENDED_STATES)}"}} == 1'
GOES_ON = f"unless on (run, root) {ENDED}"
"""Runs that have ended need no person for what happened before; their other alerts rest."""
STARTS = "penstock_training_starts"
RESTARTING = (
    f"{STARTS} - min_over_time({STARTS}[1h]) >= {RESTARTS}"
    # A run that began within the hour, whose first start counts too.
    f" or ({STARTS} >= {RESTARTS} and min_over_time({STARTS}[1h]) <= 1 unless {STARTS} offset 1h)"
)


@dataclass(frozen=True)
class Rule:
    name: str
    """Condition of the list."""
    expression: str
    summary: str
    """Text with labels and value, as Prometheus fills it in."""
    minutes: int = 0
    """Minutes for which the expression holds before the alert fires."""


RULES = (
    Rule(
        "metrics-gone",
        "absent(penstock_up) or penstock_up == 0 or penstock_pipeline_up == 0",
        "Metrics of {{ $labels.part }}{{ $labels.dataset }} cannot be read",
        10,
    ),
    Rule(
        "batch-stopped",
        'penstock_pipeline_batches{standing="stopped"} > 0',
        "{{ $value }} batches of {{ $labels.dataset }} were stopped by a check",
    ),
    Rule(
        "backlog-old",
        "penstock_pipeline_backlog_oldest_seconds > 6 * 3600",
        "Objects that landed for {{ $labels.dataset }} have waited for {{ $value | humanizeDuration }}",
    ),
    Rule(
        "nothing-arrives",
        "time() - penstock_pipeline_landed_timestamp_seconds > 2 * 86400",
        "Nothing has landed for {{ $labels.dataset }} for {{ $value | humanizeDuration }}",
    ),
    Rule(
        "version-old",
        "time() - penstock_version_timestamp_seconds > 30 * 86400",
        "The newest version of {{ $labels.dataset }} is {{ $value | humanizeDuration }} old",
    ),
    Rule(
        "dataset-damaged",
        'penstock_up{part="versions"} == 0',
        "The newest version of a dataset cannot be read: run penstock verify",
    ),
    Rule(
        "run-stalled",
        'penstock_training_state{state="stalled"} == 1',
        "{{ $labels.run }} makes no step",
    ),
    Rule(
        "run-failed",
        'penstock_training_state{state="failed"} == 1',
        "{{ $labels.run }} failed",
    ),
    Rule(
        "run-damaged",
        'penstock_training_state{state="damaged"} == 1',
        "An object of {{ $labels.run }} cannot be read",
    ),
    Rule(
        "run-restarting",
        f"({RESTARTING}) {GOES_ON}",
        "{{ $labels.run }} starts again and again",
    ),
    Rule(
        "loss-not-finite",
        f"penstock_training_not_finite_steps > 0 {GOES_ON}",
        "A metric of {{ $labels.run }} is not finite at {{ $value }} steps",
    ),
    Rule(
        "run-starved",
        f"penstock_training_waiting_ratio > {STARVED_SHARE} {GOES_ON}",
        "{{ $labels.run }} waits for data {{ $value | humanizePercentage }} of its time",
        round(STARVED_S / 60),
    ),
    Rule(
        "checkpoint-old",
        f"time() - penstock_training_checkpoint_timestamp_seconds > {CHECKPOINT_OLD_S:.0f} unless on (run, root) "
        f'penstock_training_state{{state=~"{"|".join(ENDED_STATES)}|stalled"}} == 1',
        "The newest checkpoint of {{ $labels.run }} is {{ $value | humanizeDuration }} old",
    ),
    Rule(
        "samples-substituted",
        f"penstock_training_substituted > 0 {GOES_ON}",
        "{{ $labels.run }} replaced {{ $value }} samples that it could not read",
    ),
    Rule(
        "node-suspect",
        "penstock_node_suspects > 0",
        "{{ $value }} nodes have signs against them",
    ),
)


def rules_text() -> str:
    """Return the file of rules."""
    lines = [HEAD]
    for rule in RULES:
        condition = BY_NAME[rule.name]
        lines.append(f"      - alert: {rule.name}\n")
        lines.append(f"        expr: >-\n          {rule.expression}\n")
        if rule.minutes:
            lines.append(f"        for: {rule.minutes}m\n")
        lines.append(f"        labels: {{severity: {condition.severity}}}\n")
        lines.append("        annotations:\n")
        lines.append(f'          summary: "{rule.summary}"\n')
        lines.append(f'          description: "{condition.sentence}"\n')
        lines.append(f"          runbook_url: {condition.runbook}\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(rules_text())
