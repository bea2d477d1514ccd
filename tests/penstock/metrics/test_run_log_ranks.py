"""A run log of several ranks: the figures are those of one rank, whichever writes first."""

import os
import time
from pathlib import Path

import pytest

from loader.storage import Store, open_store
from penstock.metrics.run_sources import RELIST_S, TrailSource
from penstock.metrics.trail_facts import TrailFacts
from tests.penstock.metrics.histories import even_steps, put_steps

RUN = "big-7"
FIRST, SECOND = "0-of-2", "1-of-2"
"""Folders of the two ranks."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def put_rows(store: Store, rank: str, first_step: int) -> str:
    """Store an object of a rank, with one substituted sample in each of its 3 steps; return its key."""
    now_us = time.time_ns() // 1000
    return put_steps(store, RUN, even_steps(first_step, 3, now_us, substituted=1), rank)


def read_new(source: TrailSource) -> list[str]:
    """List all folders of the log, as after a new start; read what is new, and return its keys."""
    source.relists = True
    source.refresh(time.time())
    keys = []
    while source.unread:
        info = source.unread.pop(0)
        source.read(info)
        keys.append(info.key)
    return keys


def test_other_rank_is_not_added_to_the_figures(store: Store) -> None:
    facts = TrailFacts()
    source = TrailSource(store, RUN, facts)
    first = put_rows(store, FIRST, 0)
    put_rows(store, SECOND, 0)
    assert read_new(source) == [first]
    put_rows(store, SECOND, 3)
    assert read_new(source) == []
    second = put_rows(store, FIRST, 3)
    assert read_new(source) == [second]
    assert facts.last_step == 5
    assert facts.substituted == 6


def test_other_rank_is_read_once_the_first_has_stopped(store: Store, tmp_path: Path) -> None:
    source = TrailSource(store, RUN, TrailFacts())
    first = put_rows(store, FIRST, 0)
    before_s = time.time() - 2 * RELIST_S
    os.utime(tmp_path / first, (before_s, before_s))
    assert read_new(source) == [first]
    other = put_rows(store, SECOND, 3)
    assert read_new(source) == [other]
