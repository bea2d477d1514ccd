"""Next steps after the demo: commands that run as printed in the checkout, and automation to turn on in Dagster."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from examples.demo.show import line

ARRIVALS: Mapping[str, str] = {
    "demo_discovery": "sensor: a batch and a run of what lands in {source}",
    "demo_release_schedule": "each night: a version of the batches that passed their checks",
    "demo_refresh_schedule": "each night: features again, where a featurizer changed",
    "demo_reconcile_schedule": "each week: objects that discovery missed",
    "demo_quarantine_reports": "sensor: judges samples that trainings found corrupt",
    "demo_training_reports": "sensor: shows the trainings that read the dataset",
}
"""Sensors and schedules that a running dataset needs -> what each does."""
ALERTS: Mapping[str, str] = {
    "demo_watch": "sensor: an alert for a stopped batch, a long wait, or no arrivals",
    "penstock_run_failure": "sensor: an alert for a run that failed for good",
    "penstock_tidy_weekly": "each week: old runs leave Dagster's databases",
    "penstock_collect_weekly": "each week: counts bytes that no version needs; deletes none",
}
"""Sensors and schedules of a deployment -> what each does."""
ON_ALREADY = ("penstock_recovery", "penstock_jobs")
"""Sensors that are on by default."""
RED_NODE = "The asset `version` is red on purpose: its gate stopped the third batch, and its checks say why."


def print_commands(into: Path, dataset: str, *, has_training: bool) -> None:
    """Print the commands that go on from the demo, in a new shell in this folder.

    The planted faults need the demo's own photos.
    """
    root, card = os.path.relpath(into / "root"), os.path.relpath(into / "card.html")
    rows = [
        (_activate(), "once in each new shell: python and penstock"),
        (f"penstock ls --root {root}", "the versions"),
        (f"penstock card {dataset} --root {root} --html {card}", "the dataset card of the newest"),
    ]
    if has_training:
        viewed = f"penstock view whole --root {root} --recipe examples.train:recipe"
        rows += [
            (f"penstock train ls --root {root}", "the trainings, and how often each started"),
            (viewed, "the training, step by step"),
        ]
    if has_training and (into / "raw" / "photos").is_dir():
        rows.append(("python -m examples.planted", "three faults to find in the viewer (docs/viewer.md)"))
    rows += [
        ("make ui", "lineage, runs and checks at http://127.0.0.1:3000"),
        ("make demo SOURCE=<folder or URL>", "the same with your own files"),
    ]
    line(f"next, in {Path.cwd()}:")
    for command, says in rows:
        if command:
            line(f"  {command:<33}  # {says}")


def print_automation(source: str) -> None:
    """Print which sensors and schedules to turn on. source: the landing folder or URL."""
    landing = source if "://" in source else os.path.relpath(source)
    for title, names in (
        ('Turn on at "Automation", for data that arrives by itself:', ARRIVALS),
        ("and in a deployment:", ALERTS),
    ):
        line(title)
        for name, says in names.items():
            line(f"  {name:<24}  {says.format(source=landing)}")
    line(f"On already: {', '.join(ON_ALREADY)}.")


def _activate() -> str:
    """Return the command that puts this environment on the path, "" outside of one."""
    script = Path(sys.prefix) / "bin" / "activate"
    if sys.prefix == sys.base_prefix or not script.exists():
        return ""
    inside = script.is_relative_to(Path.cwd())
    return f"source {os.path.relpath(script) if inside else script}"
