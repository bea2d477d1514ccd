"""Retention policies: what they keep, for every history; and that nothing claimed meanwhile is retired."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.log.state import Hold, Ref, State, Txn, VersionRecord
from loader.errors import InvalidRuntime, VersionNotFound
from penstock.upkeep.gc import Policy, retire_by_policy, retirements
from tests.refusals import refusal

DAY_US = 86_400_000_000


def make_state(n, retired=(), tagged=(), held=(), parents=()):
    versions = tuple(
        VersionRecord(
            dataset="d",
            number=i,
            id=f"v-{i}",
            manifest="m",
            sha256="",
            parent=None,
            txn=f"t{i}",
            denies=0,
            n=i,
            retired="x" if i in retired else None,
        )
        for i in range(1, n + 1)
    )
    return State(
        datasets={"d": versions},
        ids={one.id: ("d", one.number) for one in versions},
        refs={("d", f"r{i}"): Ref(dataset="d", name=f"r{i}", ref_kind="tag", number=i) for i in tagged},
        holds=tuple(Hold(n=1, dataset="d", number=i, by="a", why="b") for i in held),
        txns={f"o{i}": Txn(txn=f"o{i}", dataset="d", parent=f"v-{i}", status="open", n=1) for i in parents},
    )


def numbers(state, policy, leased=(), created=None, now_us=0):
    created = created or {}
    found = retirements(
        state,
        "d",
        policy,
        leased={f"v-{i}" for i in leased},
        created_us={f"v-{i}": us for i, us in created.items()},
        now_us=now_us,
    )
    return [one.number for one in found]


def timestamp_us(year, month, day):
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1e6)


def test_what_each_right_keeps():
    state = make_state(8, retired=[2], tagged=[1], held=[3], parents=[5])
    assert numbers(state, Policy(last=1)) == [4, 6, 7]
    assert numbers(state, Policy(last=2), leased=[4]) == [6]
    assert numbers(state, Policy(last=100)) == []


def test_one_a_month():
    created = {
        1: timestamp_us(2026, 1, 3),
        2: timestamp_us(2026, 1, 31),
        3: timestamp_us(2026, 3, 1),
        4: timestamp_us(2026, 3, 2),
        5: timestamp_us(2026, 4, 1),
        6: timestamp_us(2026, 4, 2),
    }
    state, now_us = make_state(6), timestamp_us(2026, 4, 3)
    assert numbers(state, Policy(last=1, monthly=2), created=created, now_us=now_us) == [1, 2, 3, 5]
    assert numbers(state, Policy(last=1, monthly=3), created=created, now_us=now_us) == [1, 3, 5]
    assert numbers(state, Policy(last=1, monthly=99), created=created, now_us=now_us) == [1, 3, 5]
    assert numbers(state, Policy(last=1, days=31), created=created, now_us=timestamp_us(2026, 4, 1)) == [
        1,
        2,
        3,
    ]


YEAR = 365
NOW_US = timestamp_us(2026, 11, 20)


def ago(*days):
    """Number of the version -> what its publisher's clock said, so many days before now."""
    return {number: NOW_US - round(day * DAY_US) for number, day in enumerate(days, 1)}


@pytest.mark.parametrize(
    ("said", "retired"),
    [
        ((40, 35, 3, 2, 1), [1, 2]),
        (
            (40, 35, 3 + YEAR, 2, 1),
            [1, 2],
        ),  # slow: made before the one that is 2 days old, and nobody knows when
        ((40, 3, 2 + YEAR, 1), [1]),
        ((40, 3, 2 + YEAR, 2 + YEAR, 1 + YEAR), [1]),  # all that came since
        ((40, 35, 34 + YEAR, 33, 1), [1, 2, 3, 4]),  # slow, and old all the same
        ((40, 35, 3 - YEAR, 2, 1), [1, 2]),  # fast
        (
            (40 - YEAR, 39, 38, 37, 1),
            [2, 3, 4],
        ),  # fast, to a time to come: none behind it is taken for younger
        ((40, 39 - YEAR, 38, 37, 1), [1, 3, 4]),
        (
            (YEAR, 370 - YEAR, 360, 30, 1),
            [1],
        ),  # fast, to a time that is over: those behind it stay for some days more
        ((YEAR, 390 - YEAR, 380, 30, 20, 1), [1, 2, 3, 4, 5]),
    ],
)
def test_clocks_that_are_wrong_and_days(said, retired):
    state = make_state(len(said))
    assert numbers(state, Policy(last=1, days=10), created=ago(*said), now_us=NOW_US) == retired


@pytest.mark.parametrize(
    ("k", "wrong_by", "retired"),
    [(1, 0, [1, 2]), (4, -YEAR, [1]), (5, -YEAR, [1]), (3, YEAR, [1]), (1, YEAR, [1, 2]), (5, YEAR, [1])],
)
def test_clocks_that_are_wrong_and_months(k, wrong_by, retired):
    """The last of each of three months; one whose clock is wrong takes no month's place, and stays."""
    created = dict(enumerate((timestamp_us(2026, month, 9) for month in (7, 8, 9, 10, 11)), 1))
    created[k] += wrong_by * DAY_US
    assert numbers(make_state(5), Policy(last=1, monthly=3), created=created, now_us=NOW_US) == retired


@pytest.mark.parametrize("us", [10**18, 2**62, -(2**62)])
def test_clock_that_is_out_by_ages(us):
    """No calendar has such a year."""
    policy = Policy(last=1, days=4, monthly=1)
    assert numbers(make_state(4), policy, created=ago(50, 40, 3, 2) | {2: us}, now_us=NOW_US) == [1]


def test_what_was_retired_still_bears_witness():
    """Else a version of a slow clock would go right after those that show that it is slow."""
    said = (40, 35, 3 + YEAR, 2, 1)
    state = make_state(5, retired=[1, 2])
    assert numbers(state, Policy(last=1, days=10), created=ago(*said), now_us=NOW_US) == []
    assert numbers(state, Policy(last=1, monthly=1), created=ago(*said), now_us=NOW_US) == [4]


def test_slow_clock_of_a_publisher_when_a_policy_is_applied(properties, monkeypatch):
    """Again and again, also when the manifests of what was retired are gone."""
    root, said = properties.fresh(), ago(40, 35, 3 + YEAR, 2, 1)
    for number, us in said.items():
        with monkeypatch.context() as patch:
            patch.setattr("time.time_ns", lambda us=us: us * 1000)
            properties.write(root, f"v{number}")
    root.close()
    policy, gone = Policy(last=1, days=10), []
    for days_later, retired in ((0, [1, 2]), (1, []), (6, []), (9, [3, 4])):
        now_us = NOW_US + days_later * DAY_US
        done = retire_by_policy(root, "d", policy, now_us=now_us, apply=True)
        assert [one.number for one in done] == retired, days_later
        gone += [one.manifest for one in done]
        root.store.delete_many(gone)


def test_publisher_that_is_always_slow_and_months():
    """From version 3 on every second one is published by a clock a year slow: its last of each month stay."""
    made = [timestamp_us(2026, month, day) for month in (9, 10, 11) for day in (3, 5, 7, 9)]
    created = {n: us - YEAR * DAY_US * (n % 2 == 1 and n > 1) for n, us in enumerate(made, 1)}
    assert numbers(make_state(12), Policy(last=1, monthly=2), created=created, now_us=NOW_US) == [
        1,
        2,
        3,
        4,
        5,
        6,
        9,
        10,
    ]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(data=st.data())
def test_clock_that_is_wrong_loses_no_young_version(data):
    """One publisher's clock is slow or fast, by anything: of the others nothing goes that was kept before, and its own
    version stays as long as it is young, where the others' order shows that the clock is slow."""
    n = data.draw(st.integers(2, 10))
    true = sorted(data.draw(st.lists(st.integers(0, 100), min_size=n, max_size=n)), reverse=True)
    k, slow_by = data.draw(st.integers(1, n)), data.draw(st.integers(-1000, 1000))
    days = data.draw(st.integers(1, 60))
    created = ago(*true)
    kept_by_age = {i for i, age in enumerate(true, 1) if age < days}
    created[k] -= slow_by * DAY_US
    policy = Policy(last=1, days=days, monthly=data.draw(st.integers(0, 3)))
    found = set(numbers(make_state(n), policy, created=created, now_us=NOW_US))
    assert not found & (kept_by_age - {k})
    if slow_by <= 0 or true[k - 1] + slow_by > min(true[: k - 1], default=10**9):
        assert not found & kept_by_age


@settings(max_examples=60, derandomize=True, deadline=None)
@given(data=st.data())
def test_for_every_history(data):
    n = data.draw(st.integers(1, 12))
    some = st.sets(st.integers(1, n))
    state = make_state(n, *(data.draw(some) for _ in range(4)))
    leased, created = data.draw(some), {i: i * 20 * DAY_US for i in range(1, n + 1)}
    policy = Policy(
        last=data.draw(st.integers(1, 4)),
        monthly=data.draw(st.integers(0, 3)),
        days=data.draw(st.integers(0, 90)),
    )
    now_us = (n + 1) * 20 * DAY_US
    found = set(numbers(state, policy, leased, created, now_us))
    alive = {one.number for one in state.versions("d") if one.retired is None}
    claimed = {one.number for one in state.refs.values()} | {one.number for one in state.holds} | leased
    claimed |= {int(txn.parent[2:]) for txn in state.txns.values()}
    assert found <= alive - claimed
    left = alive - found
    assert set(sorted(alive)[-policy.last :]) <= left
    assert {i for i in alive if now_us - created[i] < policy.days * DAY_US} <= left
    made = {i: datetime.fromtimestamp(created[i] / 1e6, UTC) for i in alive}
    months = sorted({(one.year, one.month) for one in made.values()}, reverse=True)[: policy.monthly]
    assert set(months) <= {(made[i].year, made[i].month) for i in left}


@pytest.mark.parametrize(
    ("wrong", "least"),
    [({"last": 0}, 1), ({"monthly": -1}, 0), ({"days": 0.5}, 0), ({"last": True}, 1)],
)
def test_policy_states_a_wrong_number(wrong, least):
    ((name, value),) = wrong.items()
    with refusal(InvalidRuntime, what=name, given=value, accepted=f"a whole number of at least {least}"):
        Policy(**{"last": 1} | wrong)


def test_it_is_applied(properties):
    root = properties.fresh()
    for name in "abcde":
        properties.write(root, name)
    root.close()
    root.tag("d@2", "paper")
    root.hold("d@3", by="alice", why="audit")
    policy = Policy(last=1)
    assert [one.number for one in retire_by_policy(root, "d", policy, now_us=0)] == [1, 4]
    assert root.record("d@1").retired is None
    assert [one.number for one in retire_by_policy(root, "d", policy, now_us=0, apply=True)] == [1, 4]
    assert root.record("d@4", retired=True).retired == "retention: last 1"
    assert retire_by_policy(root, "d", policy, now_us=0, apply=True) == []
    with refusal(VersionNotFound, what="dataset", given="e", accepted=["d"]):
        retire_by_policy(root, "e", policy, now_us=0)


@pytest.mark.parametrize(
    ("claim", "number", "retired"),
    [
        (lambda root: root.open("d@2"), 2, 1),  # while the entry before it was appended
        (lambda root: root.hold("d@1", by="alice", why="x"), 1, 2),
    ],
    ids=["opened", "held"],
)
def test_what_is_claimed_meanwhile_is_not_retired(properties, claim, number, retired):
    root = properties.fresh()
    for name in "abc":
        properties.write(root, name)
    root.close()
    other = properties.again(root)
    root._use(properties.meanwhile(root.store, "put_if_absent", lambda: claim(other)))
    done = retire_by_policy(root, "d", Policy(last=1), now_us=0, apply=True)
    assert [one.number for one in done] == [retired]
    assert root.record(f"d@{number}").retired is None
    other.close()
