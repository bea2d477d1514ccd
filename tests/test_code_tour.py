"""Every file and function that docs/code-tour.md names exists, and the five questions are on its first screen."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "code-tour.md").read_text()
PATH = re.compile(r"`([\w.]+(?:/[\w.]+)*\.(?:py|c|toml))`")
NAMED = re.compile(r"`(\w+)`(?=:| \||;|$)", re.M)
LINES = [line for line in PAGE.splitlines() if re.match(r"\|.*`|\d\. `", line)]
"""Rows of tables and steps of lists: a file, then names in it."""
QUESTIONS = (
    "order computed",
    "checksum verified",
    "frame decoded for training",
    "publication stopped",
    "format added",
)


@pytest.mark.parametrize("line", LINES)
def test_file_defines_each_named_function(line: str) -> None:
    paths = PATH.findall(line)
    assert paths
    for path in paths:
        assert (ROOT / path).is_file(), path
    code = (ROOT / paths[0]).read_text()
    names = NAMED.findall(line)
    assert names or not paths[0].endswith(".py")
    for name in names:
        assert re.search(rf"^(?:def |class )?{name}\b", code, re.M), (paths[0], name)


def test_five_questions_are_on_the_first_screen() -> None:
    first_screen = PAGE.splitlines()[:20]
    for question in QUESTIONS:
        assert any(question in line for line in first_screen), question


def test_ways_through_the_code_have_eight_files_each() -> None:
    assert len(LINES) >= 13 + 3 * 8
