"""The examples of docs/pipeline.md, Annotations, print what the page says."""

import argparse
import re
from pathlib import Path

from penstock.verbs import VERBS
from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
(TEXT,) = re.findall(
    r"^## Annotations\n.*?(?=^## )", (ROOT / "docs" / "pipeline.md").read_text(), re.M | re.S
)


def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    code = re.findall(r"```python (\w+)\n(.*?)```", TEXT, re.S)
    shown = dict(re.findall(r"```text (\w+)\n(.*?)```", TEXT, re.S))
    assert [name for name, _ in code] == list(shown)
    whole = "".join(f"print('## {name}')\n{one}" for name, one in code)
    run = python("-W", "error", "-c", whole, cwd=tmp_path)
    expected = "".join(f"## {name}\n{text}" for name, text in shown.items())
    assert (run.returncode, run.stdout, run.stderr) == (0, expected, "")


def test_options_are_those_of_the_verb() -> None:
    parser = argparse.ArgumentParser()
    for add_argument in VERBS["annotate"].arguments:
        add_argument(parser)
    assert set(re.findall(r"--[a-z][a-z-]+", TEXT)) <= set(re.findall(r"--[a-z-]+", parser.format_help()))
