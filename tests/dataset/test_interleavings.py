"""Publishers, groups, exclusions, retirements and names on the real code, interleaved request by request."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset import publish
from loader.errors import PenstockError
from penstock.verify_root import verify_root

_numbers = itertools.count()
KINDS = ("write", "again", "group", "exclude", "retire", "tag", "abort")


@pytest.fixture(scope="module")
def turns(shared):
    return shared("dataset/turns")


def begun(runs):
    """A root with `runs` publishes, so that some next one merges tables."""
    root = loader.Root(f"memory://turns-{next(_numbers)}")
    for run in range(runs):
        with root.write("d", producer={"op": f"first{run}"}) as writer:
            writer.add(f"k{run}", {"x": b"%d" % run})
            if not run:
                writer.add("spare", {"x": b"s"})
    return root


def job(kind, name, root):
    """What an actor does; the manifest of what it publishes says who did it."""
    facts = {"op": name}
    if kind in ("write", "again", "abort"):
        txn = root.begin("d")
        key = "shared" if kind == "again" else name
        part = loader.write_part(root, txn, [(key, {"x": name.encode()})])
        if kind == "abort":  # a collector that takes the writer for dead
            root.abort(txn, "thought dead")
        return lambda root: root.publish("d", [part], producer=facts)
    return {
        "group": lambda root: root.add_group("d", "g", {"t.txt": lambda sample: name}, producer=facts),
        "exclude": lambda root: root.exclude("d", ["k0"], reason=name, producer=facts),
        "retire": lambda root: root.retire("d@2", reason=name),
        "tag": lambda root: root.tag("d@1", "good"),
    }[kind]


def effect(kind, name, before):
    """What the next version holds: key -> fields."""
    if kind == "group":
        return {
            key: fields if "t.txt" in fields else {**fields, "t.txt": name.encode()}
            for key, fields in before.items()
        }
    if kind == "exclude":
        return {key: fields for key, fields in before.items() if key != "k0"}
    key = "shared" if kind == "again" else name
    assert key not in before
    return {**before, key: {"x": name.encode()}}


def interleaved(properties, turns, kinds, choices, faults, runs):
    """Run the actors; whatever came of it is one after the other, in the log's order."""
    root = begun(runs)
    names = {f"{kind}-{i}": kind for i, kind in enumerate(kinds)}
    results = turns.Turns(choices, faults).run(root.url, {n: job(k, n, root) for n, k in names.items()})
    root = loader.Root(root.url)
    for name, result in results.items():
        assert not isinstance(result, Exception) or isinstance(result, PenstockError), (name, result)
    published = {}
    for record in root.versions("d"):
        version = publish.open_record(root.store, record)
        now = properties.content(version)
        who = version.manifest["producer"]["op"]
        if record.number > runs:
            before = publish.open_record(root.store, root.state.by_id(record.parent))
            assert now == effect(names[who], who, properties.content(before))
            assert who not in published
            published[who] = record.number
    for name, kind in names.items():
        result = results[name]
        if kind in ("write", "again", "group", "exclude", "abort"):
            # Told that it was published: it was, under that number. Told otherwise: it was not.
            assert published.get(name) == (None if isinstance(result, Exception) else result.number), (
                name,
                result,
            )
            assert kind != "abort" or isinstance(result, Exception)
    assert verify_root(root, full=True).problems == []
    assert root.log.verify() == root.state
    return results


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=2, max_size=3),
    choices=st.lists(st.integers(0, 5), max_size=80),
    faults=st.integers(0, 3),
    runs=st.sampled_from([2, 7]),
)
def test_whatever_the_interleaving(properties, turns, kinds, choices, faults, runs):
    interleaved(properties, turns, kinds, choices, faults, runs)


def test_two_that_merge_at_once(properties, turns):
    """Eight tables are there with each of them: both write merged ones, and the later lies on the other's."""
    for choices in ([0] * 200, [0, 1] * 100, [1, 1, 0] * 70):
        results = interleaved(properties, turns, ["write", "write"], choices, 0, 7)
        assert sorted(version.number for version in results.values()) == [8, 9]
        assert all(len(version.manifest["shards"]) <= 2 for version in results.values())


def test_a_clock_that_is_a_year_off_changes_nothing_but_the_times(properties, turns, monkeypatch):
    import time

    real = time.time_ns
    shifts = itertools.cycle([0, 365 * 86_400 * 10**9, -365 * 86_400 * 10**9])
    monkeypatch.setattr(time, "time_ns", lambda: real() + next(shifts))
    results = interleaved(properties, turns, ["write", "exclude", "tag"], [0, 1, 2] * 60, 2, 2)
    assert not any(isinstance(result, Exception) for result in results.values())


def lost_parent(patch):
    """A rebase that lays the change on what was newest first."""
    real, first = publish.child, {}
    patch.setattr(
        publish,
        "child",
        lambda base, change, **facts: real(first.setdefault(facts["txn"], base), change, **facts),
    )


def merged_on_the_first_parent(patch):
    """The merged list of the first try, whatever was published meanwhile."""
    real, first = publish.compacted, {}

    def compacted(store, prefix, body, done):
        made = real(store, prefix, body, done)
        kept = first.setdefault(prefix, made)
        return {**made, "shards": kept["shards"]}

    patch.setattr(publish, "compacted", compacted)


def keys_not_asked_again(patch):
    real, asked = publish.NewKeys.__call__, set()

    def check(self, parent):
        if id(self) not in asked:
            asked.add(id(self))
            real(self, parent)

    patch.setattr(publish.NewKeys, "__call__", check)


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (lost_parent, ["write", "write"]),
        (merged_on_the_first_parent, ["write", "write"]),
        (keys_not_asked_again, ["again", "again"]),
    ],
)
def test_a_planted_bug_is_found(properties, turns, monkeypatch, plant, kinds):
    """In turns: both read the log before either writes."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        interleaved(properties, turns, kinds, [0, 1] * 100, 0, 2)


@pytest.mark.parametrize("kinds", [["write", "write"], ["again", "again"]])
def test_and_without_it_nothing(properties, turns, kinds):
    interleaved(properties, turns, kinds, [0, 1] * 100, 0, 2)
