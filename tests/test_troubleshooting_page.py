"""docs/troubleshooting.md has a row for each error, and its commands are verbs of the command line."""

import re
from pathlib import Path

import loader
from penstock.verbs import VERBS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_page_has_one_row_for_each_error() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    errors = {name for name, value in vars(loader.errors).items() if isinstance(value, type)}
    assert sorted(rows) == sorted(errors - {"PenstockError", "StoreError"})


def test_page_names_only_verbs_that_exist() -> None:
    verbs = set(re.findall(r"`penstock ([a-z]+)", PAGE))
    assert len(verbs) > 6
    assert verbs <= set(VERBS)
