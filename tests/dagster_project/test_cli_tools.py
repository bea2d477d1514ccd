"""Dagster's own command lines over this checkout, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
WORKSPACE = REPOSITORY / "workspace.yaml"
BIN = Path(sys.executable).parent


def environment(home: Path) -> dict[str, str]:
    """Of a person who activated nothing; telemetry is off, as the demo's own settings have it."""
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n", encoding="utf-8")
    places = {"PENSTOCK_ROOT": str(home / "root"), "PENSTOCK_LANDING": str(home / "landing")}
    return places | {"HOME": str(home), "DAGSTER_HOME": str(home), "PATH": os.defpath}


def call(command: list[str], cwd: Path, home: Path) -> str:
    """What a command that succeeds prints, on both streams."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.parametrize("folder", [".", "dagster_project/datasets"])
def test_dg_checks_the_definitions_without_a_warning(folder: str, tmp_path: Path) -> None:
    said = call([str(BIN / "dg"), "check", "defs"], REPOSITORY / folder, tmp_path)
    assert "All definitions loaded successfully" in said
    assert "warn" not in said.lower(), said


def test_dg_lists_what_definitions_assembles(tmp_path: Path) -> None:
    said = call([str(BIN / "dg"), "list", "defs", "--json"], REPOSITORY, tmp_path)
    for name in ("demo/raw_objects", "demo/samples", "demo/version", "demo_ingest", "demo_discovery"):
        assert f'"{name}"' in said


def test_workspace_validates_from_any_directory(tmp_path: Path) -> None:
    elsewhere = tmp_path / "a folder elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(WORKSPACE)]
    said = call(command, elsewhere, tmp_path)
    assert "Validation successful for code location penstock" in said
    # Dagster says that `dg check defs` has superseded this command; it is there for those who use it.
    others = [line for line in said.splitlines() if "warn" in line.lower() and "Supersession" not in line]
    assert not others
