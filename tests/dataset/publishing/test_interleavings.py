"""Publishers, groups, annotations, exclusions, retirements, names, holds, readers, takedowns and collectors on the real
code, interleaved request by request; `make prove` runs it at length."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.publishing import commit as publish
from loader.errors import PenstockError


@pytest.fixture(scope="module")
def actors(shared):
    return shared("dataset/actors")


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_the_interleaving(actors, data):
    actors.draw_race(**data.draw(actors.runs()))


@pytest.mark.parametrize(
    ("kinds", "grace_s"),
    [
        (["read", "retire", "collect", "shared"], 0),
        (["bring", "takedown", "collect"], 72 * 3600),
        (["hold", "tag", "retire", "collect"], 0),
        pytest.param(["read", "retire", "collect", "shared"], 72 * 3600, marks=pytest.mark.nightly),
        pytest.param(["bring", "takedown", "collect"], 0, marks=pytest.mark.nightly),
        pytest.param(["hold", "tag", "retire", "collect"], 72 * 3600, marks=pytest.mark.nightly),
    ],
)
def test_what_a_collector_meets(actors, kinds, grace_s):
    """Short turns, and long ones."""
    for pairs in ([(0, 1), (1, 1), (2, 1), (3, 1)], [(2, 40), (0, 5), (1, 9), (2, 3)]):
        actors.draw_race(kinds, actors.bursts(pairs), 1, 3, grace_s)


def test_two_that_merge_at_once(actors):
    """Eight tables are there with each of them: both write merged ones, and the later lies on the other's."""
    for choices in ([0] * 200, [0, 1] * 100, [1, 1, 0] * 70):
        results = actors.draw_race(["write", "write"], choices, 0, 7)
        assert sorted(version.number for version in results.values()) == [8, 9]
        assert all(len(version.manifest["shards"]) <= 2 for version in results.values())


def test_clock_that_is_a_year_off_changes_nothing_but_the_times(actors, monkeypatch):
    import time

    real = time.time_ns
    shifts = itertools.cycle([0, 365 * 86_400 * 10**9, -365 * 86_400 * 10**9])
    monkeypatch.setattr(time, "time_ns", lambda: real() + next(shifts))
    results = actors.draw_race(["write", "exclude", "tag"], [0, 1, 2] * 60, 2, 2)
    assert not any(isinstance(result, Exception) for result in results.values())


def plant_first_merge(patch):
    """The merged list of the first try, whatever was published meanwhile."""
    real, first = publish.compact_lists, {}

    def merge_first(store, prefix, body, done):
        made = real(store, prefix, body, done)
        kept = first.setdefault(prefix, made)
        return {**made, "shards": kept["shards"]}

    patch.setattr(publish, "compact_lists", merge_first)


def test_planted_bug_is_found(actors, monkeypatch):
    """In turns: both read the log before either writes. Other bugs: tests/planted_bugs/publish.toml."""
    plant_first_merge(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        actors.draw_race(["write", "write"], [0, 1] * 100, 0, 2)


@pytest.mark.parametrize("kinds", [["write", "write"], ["again", "again"]])
def test_and_without_it_nothing(actors, kinds):
    actors.draw_race(kinds, [0, 1] * 100, 0, 2)
