"""What is planned ahead, when it is fetched, and when it is given back."""

import threading
from collections import Counter

import numpy as np
import pytest

import loader
from loader.errors import Transient
from loader.run.ahead.next_reads import Extents, RankFuture, extent_pages
from loader.run.ahead.read_ahead import Claim, ReadAhead
from tests.servers.patience import PATIENCE_S, until


class Steps:
    """A source of units (step, number), three per step; fetches wait for `gate`."""

    def __init__(self, most=10**9):
        self.gate, self.most = threading.Event(), most
        self.lock = threading.Lock()
        self.fetched, self.claimed, self.given_back, self.told = [], [], [], []

    def units(self, step):
        if step == 13:
            raise Transient("cannot be planned")
        return None if step >= self.most else [(step, number) for number in range(3)]

    def expect(self, step, units):
        self.told.append(step)

    def claim(self, unit):
        with self.lock:
            self.claimed.append(unit)
        return Claim.GRANTED

    def fetch(self, unit):
        assert self.gate.wait(PATIENCE_S)
        with self.lock:
            self.fetched.append(unit)
        return 1

    def give_back(self, unit):
        with self.lock:
            self.given_back.append(unit)

    def passed(self, step):
        self.told = [one for one in self.told if one >= step]

    def forget(self):
        self.told = []


@pytest.fixture
def make_read_ahead():
    """make_read_ahead(source) -> a ReadAhead over it, and what it counts."""
    made = []

    def make(source, in_flight=4, horizon=8):
        counts, lock = Counter(), threading.Lock()

        def count(name, amount):
            with lock:
                counts[name] += amount

        made.append((source, ReadAhead(source, in_flight=in_flight, horizon=horizon, count=count)))
        return made[-1][1], counts

    yield make
    for source, ahead in made:
        source.gate.set()
        ahead.close()


def test_nothing_is_read_until_the_first_batch_is(make_read_ahead):
    """Nor looked up; and the batches after the first wait."""
    source = Steps()
    source.gate.set()
    ahead, counts = make_read_ahead(source, in_flight=64)  # the horizon alone ends its planning
    assert ahead.begin([0])
    assert ahead.begin([0])  # a second look changes nothing
    second = threading.Thread(target=ahead.begin, args=([1],))
    second.start()

    def waits():
        with ahead._lock:
            return ahead._begun == {0, 1} and not ahead._planning

    until(waits)
    assert (source.claimed, source.told, ahead._last) == ([], [], 0)
    ahead.done(0)
    second.join()
    ahead.done(1)
    until(lambda: not ahead._planning and counts["ahead_bytes"] == len(source.claimed) >= 8 * 3)
    as_far_as_the_horizon = [(step, number) for step in range(2, 10) for number in range(3)]
    # Step 1, which was begun meanwhile, may be read ahead too.
    assert sorted(one for one in source.fetched if one[0] > 1) == as_far_as_the_horizon
    assert source.told == list(range(2, 10))


def test_seek_drops_what_was_planned(make_read_ahead):
    source = Steps()
    ahead, _ = make_read_ahead(source)
    ahead.begin([0])
    ahead.done(0)
    until(lambda: len(source.claimed) == 4)
    ahead.begin([10_000])
    source.gate.set()
    ahead.done(10_000)
    until(lambda: (10_008, 2) in source.fetched)
    # A read that began before the seek may end after those of the last step.
    until(lambda: len(source.fetched) + len(source.given_back) == len(source.claimed))
    assert {step for step, _ in source.fetched + source.given_back} == {1, 2, *range(10_001, 10_009)}
    assert not {(2, 1), (2, 2)} & set(source.claimed)
    assert source.told == list(range(10_001, 10_009))


def test_what_cannot_be_planned_is_counted_and_tried_again(make_read_ahead):
    source = Steps()
    ahead, counts = make_read_ahead(source, in_flight=8)
    ahead.begin([10])
    ahead.done(10)
    until(lambda: counts["ahead_failed"] == 1)  # six units before it are claimed, and wait
    source.gate.set()
    until(lambda: counts["ahead_bytes"] == 6)
    ahead._wake()  # it looks once more at what there is to plan
    until(lambda: not ahead._planning)
    assert counts["ahead_failed"] == 1
    for step in range(11, 14):
        ahead.begin([step])
        ahead.done(step)
    until(lambda: (21, 2) in source.fetched)
    assert 13 not in {step for step, _ in source.fetched}


def test_it_ends_where_the_run_ends(make_read_ahead):
    source = Steps(most=3)
    source.gate.set()
    ahead, _ = make_read_ahead(source)
    ahead.begin([0])
    ahead.done(0)
    until(lambda: ahead._ended and not ahead._planning and len(source.fetched) == 6)
    assert {step for step, _ in source.fetched} == {1, 2}


class EndsInMidPlan:
    """A source of one unit, whose reader is told to end while the unit is claimed: as when a loader is dropped."""

    def __init__(self):
        self.given_back = []
        self.claimed = threading.Event()

    def units(self, step):
        return [step]

    def claim(self, unit):
        self.ahead.dismiss()
        self.claimed.set()
        return Claim.GRANTED

    def give_back(self, unit):
        self.given_back.append(unit)

    def expect(self, step, units):
        pass

    def passed(self, step):
        pass

    def forget(self):
        pass


def test_what_is_claimed_and_will_not_be_fetched_is_given_back():
    source = EndsInMidPlan()
    source.ahead = ReadAhead(source, in_flight=2, horizon=4, count=lambda name, n: None)
    source.ahead.begin([6])
    source.ahead.done(6)
    assert source.claimed.wait(PATIENCE_S)
    source.ahead.close()
    assert source.given_back == [7]


def test_planned_pages_are_those_of_the_steps(versions):
    """Of the rank's own samples, also where a predicate leaves some out; nothing after the last step."""
    plan = loader.plan(
        {"photos": versions["photos"].where("i % 3 <> 1"), "web": versions["web"]}, seed=3, global_batch=12
    )
    with loader.Loader(plan, 1, 2, workers=0) as batches:
        future = RankFuture(batches._assembler.recipe, [(), ()], 5, map)
    for step in range(5):
        asked = [[], []]
        for one in loader.explain(plan, step)[6:]:
            source = plan.source_names.index(one.source)
            asked[source] += [(at.path, at.offset, at.nbytes) for at in one.address.fields.values()]
        planned = future(step)
        for source, wanted in enumerate(asked):
            found = [
                (path, *span)
                for path, extents in planned.get(source, {}).items()
                for span in zip(extents.offset.tolist(), extents.nbytes.tolist(), strict=True)
            ]
            assert sorted(found) == sorted(wanted)
    assert future(5) is None


def test_pages_of_ranges():
    extents = Extents(np.array([0, 99, 100, 250, 700]), np.array([1, 2, 0, 300, 100]))
    assert extent_pages(extents, 100) == [0, 1, 2, 3, 4, 5, 7]
