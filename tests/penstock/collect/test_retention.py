"""Retention policies: what they keep, for every history; and that nothing claimed meanwhile is retired."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.history import Hold, Ref, State, Txn, VersionRecord
from loader.errors import InvalidRuntime, VersionNotFound
from penstock.collect import Policy, retire_by_policy, retirements

DAY_US = 86_400_000_000


def state_of(n, retired=(), tagged=(), held=(), parents=()):
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


def on(year, month, day):
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1e6)


def test_what_each_right_keeps():
    state = state_of(8, retired=[2], tagged=[1], held=[3], parents=[5])
    assert numbers(state, Policy(last=1)) == [4, 6, 7]
    assert numbers(state, Policy(last=2), leased=[4]) == [6]
    assert numbers(state, Policy(last=100)) == []


def test_one_a_month():
    created = {
        1: on(2026, 1, 3),
        2: on(2026, 1, 31),
        3: on(2026, 3, 1),
        4: on(2026, 3, 2),
        5: on(2026, 4, 1),
        6: on(2026, 4, 2),
    }
    state = state_of(6)
    assert numbers(state, Policy(last=1, monthly=2), created=created) == [1, 2, 3, 5]
    assert numbers(state, Policy(last=1, monthly=3), created=created) == [1, 3, 5]
    assert numbers(state, Policy(last=1, monthly=99), created=created) == [1, 3, 5]
    assert numbers(state, Policy(last=1, days=31), created=created, now_us=on(2026, 4, 1)) == [1, 2, 3]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(data=st.data())
def test_for_every_history(data):
    n = data.draw(st.integers(1, 12))
    some = st.sets(st.integers(1, n))
    state = state_of(n, *(data.draw(some) for _ in range(4)))
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
    "wrong", [{"last": 0}, {"last": 1, "monthly": -1}, {"last": 1, "days": 0.5}, {"last": True}]
)
def test_what_is_no_policy(wrong):
    with pytest.raises(InvalidRuntime, match="in a policy; a whole number of at least"):
        Policy(**wrong)


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
    with pytest.raises(VersionNotFound, match="it has d"):
        retire_by_policy(root, "e", policy, now_us=0)


def test_what_is_held_meanwhile_is_not_retired(properties):
    root = properties.fresh()
    for name in "abc":
        properties.write(root, name)
    root.close()
    other = properties.again(root)
    root._use(
        properties.Meanwhile(root.store, "put_if_absent", lambda: other.hold("d@1", by="alice", why="x"))
    )
    done = retire_by_policy(root, "d", Policy(last=1), now_us=0, apply=True)
    assert [one.number for one in done] == [2]
    assert root.record("d@1").retired is None
