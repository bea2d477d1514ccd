"""Every object comes into exactly one batch: in any history, by several processes, after a kill at any verb."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from assets.arrivals.batch_manifests import manifests
from assets.arrivals.progress import TickBudget
from assets.sources import BatchLimits, Source
from loader.storage import open_store
from tests.assets.arrivals.ticking import NOW_US, Place, Ticking
from tests.servers.processes import python

REPOSITORY = Path(__file__).resolve().parents[3]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 2), st.integers(0, 90)), max_size=40),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_any_history(history: list[tuple[str, int, int]], max_objects: int, max_listed: int) -> None:
    """Objects arrive, are overwritten and go; ticks of any size come in between, now and then of two at once."""
    store = open_store(f"memory://{os.urandom(8).hex()}/root")
    place = Place()
    go = Ticking(store, BatchLimits(max_objects=max_objects, max_wait_s=60), landing=place)
    other = Ticking(store, BatchLimits(max_objects=2, max_wait_s=0), landing=place)
    go.budget = other.budget = TickBudget(max_listed=max_listed)
    for key, what, later_s in history:
        if what:
            place.put(key, at_us=go.dataset.now_us)
        else:
            place.objects.pop(key, None)
        go(later_s)
        if later_s % 7 == 0:
            other()
    for _ in range(2 * (len(place.objects) // max_listed + 2)):
        go(60)
    times = Counter(item.identity for found in manifests(store, "d") for item in found.objects)
    assert set(times.values()) <= {1}
    assert {(f"{place.url}/{info.key}", info.etag) for info in place.objects.values()} <= set(times)


def test_many_at_once(tmp_path: Path) -> None:
    place, store = open_store(str(tmp_path / "landing")), open_store(str(tmp_path / "root"))
    sources = (Source(name="all"), Source(name="some", prefix="1"))

    def arrive(number: int) -> None:
        go = Ticking(store, BatchLimits(max_objects=4, max_wait_s=0), *sources, all=place, some=place)
        go.dataset = replace(go.dataset, now_us=4 * NOW_US)
        for position in range(4):
            place.put(f"{number}/{position}", b"x")
            go()

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(arrive, range(12)))
    arrive(12)
    times = Counter(item.key for found in manifests(store, "d") for item in found.objects)
    assert times == Counter({f"{number}/{position}": 1 for number in range(13) for position in range(4)})


KILLED = """
import sys
from contextlib import contextmanager
import pathspec, polars
from assets.sources import BatchLimits, Source
from assets.arrivals.progress import TickDataset, TickBudget
from assets.arrivals.tick import tick
from loader.storage import open_store
from tests.mortal_store import forks_killed

landing, roots = sys.argv[1:]

def work(death):
    store = death.of(open_store(f"{roots}/{death.at}"))  # after a request, which is before the next
    place = open_store(landing)
    @contextmanager
    def opened(source):
        yield place
    for _ in range(2):
        limits = BatchLimits(max_objects=3, max_wait_s=0)
        dataset = TickDataset(store=store, name="d", limits=limits, now_us=4 * 10**15)
        tick(dataset, (Source(),), opened, TickBudget(max_listed=7))

print(forks_killed(work))
"""


def test_killed_at_every_verb(tmp_path: Path) -> None:
    place = open_store(str(tmp_path / "landing"))
    for key in "abcdefghij":
        place.put(key, key.encode())
    done = python("-c", KILLED, tmp_path / "landing", tmp_path / "roots", cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    # Two ticks. Each: state, manifests that are there, a look behind them, whether it is paused, state.
    n_killed = int(done.stdout)
    assert n_killed >= 2 * 5 + 2
    for number in range(1, n_killed + 1):
        store = open_store(str(tmp_path / "roots" / str(number)))
        go = Ticking(store, BatchLimits(max_objects=3, max_wait_s=0), landing=place)
        go.dataset = replace(go.dataset, now_us=4 * 10**15)
        go(), go()
        times = Counter(item.key for found in manifests(store, "d") for item in found.objects)
        assert times == Counter("abcdefghij"), number
