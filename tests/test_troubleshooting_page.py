"""docs/troubleshooting.md has a line for each error, and its commands are verbs of the command line."""

import re
from pathlib import Path

import loader
from penstock.verbs import VERBS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_page_has_each_error_in_one_line() -> None:
    rows = [
        name
        for row in re.findall(r"^- (`\w+`(?:, `\w+`)*): ", PAGE, re.M)
        for name in re.findall(r"\w+", row)
    ]
    errors = {name for name, value in vars(loader.errors).items() if isinstance(value, type)}
    assert sorted(rows) == sorted(errors - {"PenstockError", "StoreError"})


def test_page_names_only_verbs_that_exist() -> None:
    verbs = set(re.findall(r"`penstock ([a-z]+)", PAGE))
    assert len(verbs) > 6
    assert verbs <= set(VERBS)
