"""Plants a bug in the text of the packages and shows that the test which should catch it turns red.

For code in processes and threads of its own, where patching the trainer's modules reaches nobody. `tests/planted_bugs`
lists the bugs, a file per area. Each bug is planted in a copy of the packages, over which the named tests run in a
process of their own: they fail, and pass over a copy as it is. `make mutants` runs all, `make ci` another sample each
day. `python tests/test_planted_bugs.py` writes docs/planted_bugs.md anew.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parent.parent
LISTS = REPOSITORY / "tests" / "planted_bugs"
PACKAGES = ("loader", "penstock", "assets", "resources", "dagster_project")
PAGE = REPOSITORY / "docs" / "planted_bugs.md"
UNSHRUNK = "unshrunk"
"""Hypothesis' profile that looks for no smaller example (conftest.py): that a test fails is enough."""


class Bug(NamedTuple):
    """A bug that can be planted. The text names the place, so that a file that moves costs nothing."""

    what: str
    """In words; also the test's id."""
    was: str
    """Text that stands once in all packages."""
    becomes: str
    """Text that takes its place."""
    red: tuple[str, ...]
    """Tests, as pytest names them; each fails."""


def areas() -> dict[str, list[Bug]]:
    """Title of an area -> its bugs."""
    found = {}
    for path in sorted(LISTS.glob("*.toml")):
        text = path.read_text()
        bugs = [Bug(**{**one, "red": tuple(one["red"])}) for one in tomllib.loads(text)["bug"]]
        found[text.partition("\n")[0].removeprefix("# ")] = bugs
    return found


AREAS = areas()
BUGS = [bug for bugs in AREAS.values() for bug in bugs]
IDS = [bug.what.replace(" ", "-") for bug in BUGS]


@cache
def sources() -> dict[Path, str]:
    """Path from the repository -> text of each module."""
    paths = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    return {path.relative_to(REPOSITORY): path.read_text() for path in paths}


def places_of(bug: Bug) -> list[Path]:
    """The files that hold the text of a bug, each as often as it does."""
    return [path for path, text in sources().items() for _ in range(text.count(bug.was))]


def page() -> str:
    """docs/planted_bugs.md: the text of tests/planted_bugs/page.md with a list for each area."""
    lists = []
    for title, bugs in AREAS.items():
        found: dict[str, list[str]] = {}
        for bug in bugs:
            label = re.sub(r"^(a|an|the) ", "", bug.what)
            found.setdefault(_folder(bug.red[0]), []).append(label)
        lists.append(
            "\n".join([f"## {title}\n", *(f"- {at}: {'; '.join(labels)}" for at, labels in found.items())])
        )
    return (LISTS / "page.md").read_text().replace("<!-- lists -->", "\n\n".join(lists))


def _folder(red: str) -> str:
    return Path(red).parent.as_posix().removeprefix("tests").removeprefix("/") or "tests"


def named(line: str) -> str:
    """The test that pytest's line of a failure is about, without its parameters."""
    return line.removeprefix("FAILED ").partition(" - ")[0].partition("[")[0].rpartition("tests/")[2]


@pytest.fixture
def run(tmp_path: Path):
    """run(tests) over a copy of the packages, in `copy`: its exit status and what it printed."""
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
        return subprocess.run(
            [sys.executable, *command, *options, *places, *(str(REPOSITORY / test) for test in tests)],
            cwd=copy,  # where a process of a test's own finds the package first
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(REPOSITORY)])},
            capture_output=True,
            text=True,
            timeout=900 if len(tests) > 20 else 300,  # all of them, or those of one bug
        )

    go.copy = copy
    return go


@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    places = places_of(bug)
    assert len(places) == 1, f"should stand in one place, stands in {list(map(str, places))}: {bug.was}"
    for test in bug.red:
        path, *names = test.partition("[")[0].split("::")
        text = (REPOSITORY / path).read_text()
        assert not names or f"def {names[-1]}(" in text, f"there is no {test}"


@pytest.mark.mutants
@pytest.mark.parametrize("bug", BUGS, ids=IDS)
def test_a_planted_bug_is_caught(bug: Bug, run) -> None:
    (place,) = places_of(bug)
    (run.copy / place).write_text(sources()[place].replace(bug.was, bug.becomes))
    done = run(*bug.red)
    assert done.returncode == 1, done.stdout  # 1: a test failed; others: none was run
    failed = {named(line) for line in done.stdout.splitlines() if line.startswith("FAILED ")}
    missed = [red for red in bug.red if not any(one.startswith(red.partition("[")[0][6:]) for one in failed)]
    assert not missed, done.stdout


@pytest.mark.mutants
def test_without_a_planted_bug_the_same_tests_pass(run) -> None:
    done = run(
        *sorted({red for bug in BUGS for red in bug.red})
    )  # a file's tests share what it made: one after another
    assert done.returncode == 0, done.stdout


def test_every_property_test_of_order_and_loader_is_named() -> None:
    """With a bug that turns it red."""
    named_here = {red.partition("[")[0] for bug in BUGS for red in bug.red}
    for folder in ("order", "run"):
        for file in sorted((REPOSITORY / "tests" / folder).rglob("test_*.py")):
            for one in ast.walk(ast.parse(file.read_text())):
                if isinstance(one, ast.FunctionDef) and any(
                    ast.unparse(mark).startswith("given(") for mark in one.decorator_list
                ):
                    assert f"{file.relative_to(REPOSITORY)}::{one.name}" in named_here


def test_the_page_lists_them() -> None:
    assert PAGE.read_text() == page(), f"run: python {Path(__file__).relative_to(REPOSITORY)}"


def test_every_bug_that_interleavings_find_is_named(shared) -> None:
    text = PAGE.read_text()
    for plant, kinds in shared("dataset/test_fire_mutants").MUTANTS:
        assert f"| {plant.__name__.replace('_', ' ')} | code | {', '.join(kinds)} |" in text


if __name__ == "__main__":
    PAGE.write_text(page())
