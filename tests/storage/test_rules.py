"""rules.md names tests that exist."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_rule_names_tests_that_exist():
    rows = [line for line in (HERE / "rules.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, test in named:
            file = HERE.parents[1] / path if path.startswith(("tests/", "loader/")) else HERE / path
            assert f"def {test}(" in file.read_text(), f"{path}::{test}"
