"""The commands and scripts of docs/robots.md run as they stand, on a folder of LeRobot's."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from tests.penstock.formats.builders.lerobot_files import v21, with_actions

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs/robots.md").read_text()


def command(beginning: str) -> list[str]:
    """The words of the command of the page that begins so."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"    penstock {beginning}")]
    return shlex.split(line, comments=True)[1:]


def test_commands_and_scripts_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with_actions(v21(tmp_path / "path/to/dataset", cameras=("observation.images.top",)))
    assert main(command("import lerobot")) == 0
    names: dict[str, Any] = {}
    for script in re.findall(r"```python \w+\n(.*?)```", PAGE, re.S):
        exec(compile(script, "docs/robots.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "torch.Size([8, 2, 224, 224, 3]) torch.Size([8, 50, 3])" in printed
    assert re.search(r"\[('(lift|put down)'(, )?){8}\]", printed)
    assert re.search(r"(lift|put down) \{'action': \(8, 50, 3\), 'observation.state': \(8, 3\)\}", printed)
    assert main(command("exclude")) == 0
    assert sorted(names["root"].open("arm@latest").keys([0, 1])) == ["episode_000000", "episode_000002"]
    assert main(command("export")) == 0
    assert (tmp_path / "path/to/clean/meta/info.json").is_file()


def test_page_installs_the_lerobot_of_the_oracles() -> None:
    """By its name pip replaces torch, or takes a release of years ago that agrees with it."""
    commands = [line.partition("#") for line in PAGE.splitlines() if "pip install" in line]
    (file, version) = next(
        (command.split()[-1], text) for command, _, text in commands if "--no-deps -r" in command
    )
    pin = re.search(r"lerobot (\d[\d.]*\d)", version)
    assert pin is not None
    for name in (file, "tests/oracles/lerobot06.txt"):
        assert f"lerobot=={pin[1]}" in (REPOSITORY / name).read_text().splitlines()
    assert not [command for command, _, _ in commands if "lerobot" in command]
