"""`make prove` ends with 1 where any of its jobs failed, and says what was tried."""

import sys
from collections import Counter

import pytest


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


def test_every_part_has_jobs_of_its_own(shared, monkeypatch):
    prove = shared("prove")
    told = []
    monkeypatch.setattr(prove, "run", told.append)
    monkeypatch.setattr(sys, "path", sys.path[:])
    prove.main([])
    for what in (
        "model of three publishers",
        "takedown killed on s3",
        "promotion killed on disk",
        "by chance",
    ):
        assert any(what in name for name in told[0])
    with pytest.raises(SystemExit, match="there is no part storage"):
        prove.main(["storage"])
