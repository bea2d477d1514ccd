"""What `make demo` and `make ui` print at their end: commands, sensors and schedules that exist."""

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import dagster as dg
import pytest

from dagster_project.datasets.demo import SPEC
from dagster_project.definitions import build_defs
from examples.demo.next_steps import ALERTS, ARRIVALS, ON_ALREADY, print_automation, print_commands
from penstock.cli import parser

MAKEFILE = (Path(__file__).resolve().parents[2] / "Makefile").read_text()


def test_automation_names_every_sensor_and_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    made = build_defs(datasets=[SPEC])
    found = [*(made.sensors or ()), *(made.schedules or ())]
    on = {one.name for one in found if one.default_status.value == "RUNNING"}
    assert on == set(ON_ALREADY)
    assert {one.name for one in found} - on == {*ARRIVALS, *ALERTS}
    for name, says in (ARRIVALS | ALERTS).items():
        (one,) = (one for one in found if one.name == name)
        assert says.startswith("sensor: ") == isinstance(one, dg.SensorDefinition), name
    print_automation("demo/raw")
    out = capsys.readouterr().out
    assert all(name in out for name in (*ARRIVALS, *ALERTS, *ON_ALREADY))
    assert "lands in demo/raw" in out


def test_commands_are_those_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    print_commands(Path("demo"), "demo", has_training=True)
    assert "examples.planted" not in capsys.readouterr().out, "the photos are not the demo's own"
    Path("demo/raw/photos").mkdir(parents=True)
    print_commands(Path("demo"), "demo", has_training=True)
    lines = capsys.readouterr().out.splitlines()[1:]
    commands = [shlex.split(line.partition("  #")[0]) for line in lines]
    programs = [words[0] for words in commands]
    assert programs == ["source", *["penstock"] * 4, "python", "make", "make"]
    assert os.path.samefile(commands[0][1], Path(sys.prefix) / "bin" / "activate")
    for words in commands:
        if words[0] == "penstock":
            assert parser().parse_args(words[1:]).root == "demo/root"
        if words[0] == "python":
            assert importlib.util.find_spec(words[2]) is not None
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", MAKEFILE, re.M)
