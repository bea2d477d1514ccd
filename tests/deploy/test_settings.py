"""What deploy/ holds: read by the programs it is for, or held against what it names."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from penstock.metrics.conditions import BY_NAME

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
OWN_STORAGE = ("storage", "concurrency", "sensors", "schedules", "backfills")
"""What production sets otherwise."""


def settings(name: str) -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / name / "dagster.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_instance_of_one_machine_starts_from_its_settings(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_bytes((DEPLOY / "one_machine" / "dagster.yaml").read_bytes())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.run_retries_enabled
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert instance.get_concurrency_config().run_queue_config.max_concurrent_runs == 2
        assert instance.get_settings("run_monitoring")["free_slots_after_run_end_seconds"] == 300


def test_production_differs_where_it_says_so_and_nowhere_else() -> None:
    one, many = settings("one_machine"), settings("production")
    for name in OWN_STORAGE:
        one.pop(name, None), many.pop(name)
    assert one == many


def test_no_secret_stands_in_the_settings() -> None:
    assert settings("production")["storage"] == {
        "postgres": {"postgres_url": {"env": "PENSTOCK_DAGSTER_POSTGRES"}}
    }


def test_compose_starts_the_four_processes_with_what_they_read() -> None:
    compose = yaml.safe_load((DEPLOY / "production" / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert sorted(services) == ["code-server", "daemon", "metrics", "postgres", "webserver"]
    named = set((DEPLOY / "environment.example").read_text(encoding="utf-8").split())
    for name in ("code-server", "daemon", "metrics", "webserver"):
        environment = services[name]["environment"]
        assert {key for key in environment if key.startswith("PENSTOCK_")} <= {
            line.split("=")[0] for line in named if "=" in line
        }


@pytest.mark.parametrize("unit", ["code-server", "daemon", "metrics", "webserver"])
def test_units_start_what_there_is(unit: str) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "systemd" / f"penstock-{unit}.service")
    command = shlex.split(parser["Service"]["ExecStart"])
    here = [Path(word.replace("/opt/penstock", str(REPOSITORY))) for word in command[1:]]
    for path in here:
        if path.suffix in (".py", ".yaml") and path.is_absolute():
            assert path.exists(), path
    assert parser["Service"]["EnvironmentFile"] == "/etc/penstock/environment"
    assert parser["Unit"]["PartOf"] == "penstock.target"


def test_every_condition_is_a_heading_of_the_on_call_page_and_each_alert_is_a_condition() -> None:
    page = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    for name in BY_NAME:
        assert f"\n### {name}\n" in page
    sources = (*REPOSITORY.glob("dagster_project/**/*.py"), *REPOSITORY.glob("penstock/**/*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    literals = set(re.findall(r'Alert\(\s*name="([a-z-]+)"', text))
    looked_up = set(re.findall(r'BY_NAME\["([a-z-]+)"\]', text))
    assert literals | looked_up
    assert literals | looked_up <= BY_NAME.keys()
