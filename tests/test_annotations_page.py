"""The example of docs/annotations.md prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "annotations.md").read_text()


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python example\n(.*?)```", TEXT, re.S)
    (shown,) = re.findall(r"```text example\n(.*?)```", TEXT, re.S)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, shown, "")


def test_the_options_are_those_of_the_verb() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "penstock", "annotate", "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= set(re.findall(r"--[a-z-]+", run.stdout))
