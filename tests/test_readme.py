"""The README's lines are typed in as they stand, and its links and test names are real."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def test_the_lines_print_what_the_readme_says(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    shown = re.findall(r"```text\n(.*?)```", TEXT, re.S)
    assert len(code) == len(shown) == 1
    run = subprocess.run([sys.executable, "-c", code[0]], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == shown[0]
    commands = re.findall(r"^    (penstock .*)$", TEXT, re.M)
    assert len(commands) == 6
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout.strip()


def test_what_the_readme_names_is_there() -> None:
    named = {*re.findall(r"`(tests/[\w/]+\.py)`", TEXT), *re.findall(r"\]\(((?!http)[^)]+)\)", TEXT)}
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z]+)", TEXT)):
        assert re.search(rf"^{target}:", makefile, re.M), target
