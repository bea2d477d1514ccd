"""The commands and scripts of docs/robots.md run as they stand, on a folder of LeRobot's."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from tests.penstock.formats.exchange.lerobot_files import v21, with_actions

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


@pytest.mark.parametrize("oracle", ["lerobot06", "policies"])
def test_the_page_installs_the_lerobot_of_the_oracles(oracle: str) -> None:
    """Without a version pip takes the newest that agrees with torch, which may be of years ago."""
    pins = (REPOSITORY / f"tests/oracles/{oracle}.txt").read_text()
    (line,) = re.findall(r"(?m)^    pip install .*lerobot.*$", PAGE)
    assert re.findall(r"(?m)^lerobot==(\S+)$", pins) == re.findall(r"lerobot==([\d.]+)", line)
