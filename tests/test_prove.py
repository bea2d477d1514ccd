"""`make prove` ends with 1 where any of its jobs failed, and says what was tried."""

from collections import Counter
from pathlib import Path

import pytest

from tests.servers.processes import python


def good():
    return Counter(kills=3)


def bad():
    raise AssertionError("an update is lost")


@pytest.mark.parametrize(("calls", "status"), [([good, good], 0), ([bad, good], 1)])
def test_all_jobs_are_run_and_told(shared, capsys, calls, status):
    prove = shared("prove")
    assert prove.run({f"job {number}": (1, call) for number, call in enumerate(calls)}) == status
    said = capsys.readouterr().out
    assert "job 1: 3 kills" in said
    assert f"\n{3 * calls.count(good)} kills in" in said
    assert ("an update is lost" in said) is (status == 1)
    assert said.endswith("1 of 2 jobs FAILED: job 0\n" if status else ": none bad\n")


def run(*arguments):
    """As `make prove` runs it: as a script, from another folder."""
    return python(Path(__file__).with_name("prove.py"), *arguments, cwd="/")


def test_every_part_has_jobs_of_its_own():
    done = run("--list")
    assert done.returncode == 0, done.stderr
    for what in (
        "model of three publishers",
        "takedown killed on s3",
        "promotion killed on disk",
        "by chance",
    ):
        assert what in done.stdout
    assert "model" not in run("--list", "kills").stdout


def test_part_that_is_not_there_is_named():
    done = run("storage")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no part storage; there are model, " in done.stderr
