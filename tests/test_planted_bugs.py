"""Plant bugs in the text of the packages: each must turn a named test red.

`tests/planted_bugs` lists the bugs, one file per contract. Each bug is planted in a copy of the packages. The named
tests run over the copy in a process of their own, worker processes included. `make mutants` runs all bugs, `make ci` a
different sample each day.
"""

import ast
import os
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.processes import python

REPOSITORY = Path(__file__).parent.parent
LISTS = REPOSITORY / "tests" / "planted_bugs"
PACKAGES = ("loader", "penstock", "assets", "resources", "dagster_project")
UNSHRUNK = "unshrunk"
"""Hypothesis' profile that looks for no smaller example (conftest.py): that a test fails is enough."""


SHORT = {"PENSTOCK_PATIENCE_S": "60"}
"""What a planted bug keeps from coming is not waited for as long as on a busy machine."""


class Bug(NamedTuple):
    """A bug to plant. Its text says where, so a module may move."""

    what: str
    """A description; also the test's id."""
    was: str
    """Text that stands once in all packages."""
    becomes: str
    """Replacement."""
    red: tuple[str, ...]
    """Tests that must fail, as pytest names them."""


BUGS = [
    Bug(**{**one, "red": tuple(one["red"])})
    for path in sorted(LISTS.glob("*.toml"))
    for one in tomllib.loads(path.read_text())["bug"]
]
IDS = [bug.what.replace(" ", "-") for bug in BUGS]


@cache
def sources() -> dict[Path, str]:
    """Return the text of each module by its path from the repository."""
    paths = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    return {path.relative_to(REPOSITORY): path.read_text() for path in paths}


def bug_files(bug: Bug) -> list[Path]:
    """Return the files that hold the text of a bug, one entry for each occurrence."""
    return [path for path, text in sources().items() for _ in range(text.count(bug.was))]


def parse_test(line: str) -> str:
    """Return the test that a line of pytest's summary names, without its parameters."""
    return line.removeprefix("FAILED ").partition(" - ")[0].partition("[")[0].rpartition("tests/")[2]


@pytest.fixture
def run(tmp_path: Path):
    """Return run(tests), which runs tests over a copy of the packages in `run.copy`."""
    copy = tmp_path / "copy"
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, copy / package, ignore=shutil.ignore_patterns("*.pyc.*"))

    def go(*tests: str) -> "subprocess.CompletedProcess[str]":
        # Nobody reads why: where CI is set, pytest compares line by line what differs, a batch for minutes.
        command = [
            "-P",
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-m",
            "not gpu",
            "--tb=line",
            "--assert=plain",
        ]
        options = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY)]
        places = [f"--hypothesis-profile={UNSHRUNK}", f"--basetemp={tmp_path / 'temp'}"]
        return python(
            *command,
            *options,
            *places,
            *(str(REPOSITORY / test) for test in tests),
            cwd=copy,  # where a process of a test's own finds the package first
            env={**os.environ, **SHORT, "PYTHONPATH": os.pathsep.join([str(copy), str(REPOSITORY)])},
            timeout=900 if len(tests) > 20 else 300,  # all of them, or those of one bug
        )

    go.copy = copy
    return go


@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_bug_can_be_planted(bug: Bug) -> None:
    places = bug_files(bug)
    assert len(places) == 1, f"should stand in one place, stands in {list(map(str, places))}: {bug.was}"
    for test in bug.red:
        path, *names = test.partition("[")[0].split("::")
        text = (REPOSITORY / path).read_text()
        assert not names or f"def {names[-1]}(" in text, f"there is no {test}"


@pytest.mark.mutants
@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_planted_bug_is_caught(bug: Bug, run) -> None:
    (place,) = bug_files(bug)
    (run.copy / place).write_text(sources()[place].replace(bug.was, bug.becomes))
    done = run(*bug.red)
    assert done.returncode == 1, done.stdout  # 1: a test failed; others: none was run
    failed = {parse_test(line) for line in done.stdout.splitlines() if line.startswith("FAILED ")}
    missed = [red for red in bug.red if not any(one.startswith(red.partition("[")[0][6:]) for one in failed)]
    assert not missed, done.stdout


@pytest.mark.mutants
def test_without_a_planted_bug_the_same_tests_pass(run) -> None:
    done = run(
        *sorted({red for bug in BUGS for red in bug.red})
    )  # a file's tests share what it made: one after another
    assert done.returncode == 0, done.stdout


def test_every_property_test_of_the_order_has_a_bug() -> None:
    named_here = {red.partition("[")[0] for bug in BUGS for red in bug.red}
    for file in sorted((REPOSITORY / "tests" / "order").rglob("test_*.py")):
        for one in ast.walk(ast.parse(file.read_text())):
            if isinstance(one, ast.FunctionDef) and any(
                ast.unparse(mark).startswith("given(") for mark in one.decorator_list
            ):
                assert f"{file.relative_to(REPOSITORY)}::{one.name}" in named_here
