"""docs/stores.md names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_rule_names_tests_that_there_are():
    page = (TESTS.parent / "docs" / "stores.md").read_text()
    rows = [line for line in page.partition("## Rule -> test")[2].splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            file = TESTS.parent / path if path.startswith(("tests/", "loader/")) else TESTS / "storage" / path
            assert f"def {test}(" in file.read_text(), f"{path}::{test}"
