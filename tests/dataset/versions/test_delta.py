"""What a later version has that an earlier one has not, and plans that go on under it."""

import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidPlan
from tests.refusals import refusal

ROOTS = itertools.count()


def add(root, numbers, metadata=lambda i: {"w": i}, name="d"):
    with root.write(name, part_samples=5) as writer:
        for i in numbers:
            writer.add(f"k{i}", {"cls": i}, metadata=metadata(i))
    return writer.version


def keys(view):
    return [int(key[1:]) for key in view.keys(view.version_ordinals(np.arange(len(view))))]


def gone_keys(old, delta):
    return {int(key[1:]) for key in old.keys(delta.removed)}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    script=st.lists(
        st.one_of(st.integers(1, 12), st.sets(st.integers(0, 30), max_size=4)), min_size=2, max_size=6
    ),
    below=st.integers(1, 40),
    at=st.integers(0, 5),
)
@example(script=[12, {5, 25}, 3, {20}], below=22, at=0)
def test_old_samples_keep_their_places_and_new_ones_follow(script, below, at):
    """script: samples that are added, or that are excluded. Any two versions of the history are compared."""
    root = loader.Root(f"memory://delta-{next(ROOTS)}")
    add(root, range(20))
    live, history, count = [set(range(20))], ["d@1"], 20
    for entry in script:
        if isinstance(entry, int):
            add(root, range(count, count + entry))
            now, count = live[-1] | set(range(count, count + entry)), count + entry
        else:
            gone = {i for i in entry if i in live[-1]}
            if not gone or gone == live[-1]:
                continue
            root.exclude("d@latest", [f"k{i}" for i in sorted(gone)], reason="bad")
            now = live[-1] - gone
        live.append(now)
        history.append(f"d@{len(history) + 1}")
    at %= len(history)
    for later in range(at + 1, len(history)):
        for predicate in (None, f"w % 3 = 0 OR w < {below}"):
            old, new = (root.open(ref).select() for ref in (history[at], history[later]))
            if predicate:
                old, new = old.where(predicate), new.where(predicate)

            delta = new.since(old)
            assert gone_keys(old, delta) == live[at] - live[later]
            assert delta.first == len(live[at] & live[later])
            fresh = live[later] - live[at]
            if predicate:
                fresh = {i for i in fresh if i % 3 == 0 or i < below}
            assert (set() if delta.view is None else set(keys(delta.view))) == fresh
            assert keys(new)[: len(new) - len(fresh)] == [i for i in keys(old) if i in live[later]]
            if delta.view is not None:
                assert len(delta.view) == len(fresh)
                assert delta.view.id != new.id
                again = pickle.loads(pickle.dumps(delta.view))  # noqa: S301
                assert (again.id, keys(again), again.spec()) == (
                    delta.view.id,
                    keys(delta.view),
                    delta.view.spec(),
                )
                assert delta.view.members().sum() == len(fresh)
                assert set(keys(delta.view.where("w % 2 = 0"))) == {i for i in fresh if i % 2 == 0}


def test_plan_grows_by_the_version_alone_and_is_opened_again(root):
    first = add(root, range(40))
    view = first.select("cls").where("w % 4 <> 1")
    before = loader.plan({"d": view}, seed=3, global_batch=8)
    root.exclude("d@latest", ["k3", "k6"], reason="bad")
    later = add(root, range(40, 64))
    after = before.grow({"d": later}, step=2)
    assert after.hash == before.grow({"d": later.select("cls").where("w % 4 <> 1")}, step=2).hash
    after.save(root)
    again = loader.open_plan(root, after.hash)
    assert again.hash == after.hash
    seen = []
    for step in range(12):
        assert again.batch_ids(step) == after.batch_ids(step)
        seen += [(name, int(key[1:])) for name, key in again.batch_ids(step)]
        if step < 2:
            assert again.batch_ids(step) == before.batch_ids(step)
    assert again.check_state(before.state(2)) == 2
    assert {i for name, i in seen if name == "d+1"} == {i for i in range(40, 64) if i % 4 != 1}
    whole = [i for i in range(64) if i % 4 != 1 and i not in (3, 6)]
    start = 30 + 18  # 14 left of the old epoch, with 18 new ones, after 16
    assert sorted(i for _, i in seen[start : start + len(whole)]) == whole
    assert {"k3", "k6"}.isdisjoint(key for step in range(2, 12) for _, key in again.batch_ids(step))


def test_new_samples_are_quarantined_by_their_keys(root):
    """Three versions; a key is that of the version read at the step, wherever samples before it were excluded."""
    before = loader.plan({"d": add(root, range(40)).select("cls")}, seed=3, global_batch=8)
    root.exclude("d@latest", ["k3", "k6"], reason="bad")
    made = before.grow({"d": add(root, range(40, 64))}, step=2)
    root.exclude("d@latest", ["k41"], reason="bad")
    made = made.grow({"d": add(root, range(64, 70))}, step=4)
    lists = {2: {"k5", "k45"}, 5: {"k7", "k46", "k66"}}
    for step, bad in lists.items():
        made = made.quarantined({"d": bad}, step)
    taken = [{key for _, key in made.batch_ids(step)} for step in range(30)]
    gone = lists | {3: {"k3", "k6"}, 4: {"k41"}}
    for start, bad in gone.items():
        assert all(bad.isdisjoint(one) for one in taken[start:])
    everything = {f"k{i}" for i in range(70)} - {"k3", "k6", "k41"} - lists[2] - lists[5]
    assert set().union(*taken[5:]) == everything
    made.save(root)
    assert [loader.open_plan(root, made.hash).batch_ids(step) for step in range(12)] == [
        made.batch_ids(step) for step in range(12)
    ]
    with refusal(InvalidPlan, what="key", where="source 'd'", given="k66"):
        made.quarantined({"d": ["k66"]}, 3)


BATCHES = {"a": 4, "b": 3, "c": 2, "0..30": 4, "30..50": 3, "50..99": 2}


@pytest.mark.parametrize(
    ("by", "edges", "label_of", "came"),
    [
        ("shape", None, lambda i: "abc"[(i % 3 > 0) + (i > 50)] if i % 3 else "a", "c"),
        ("w", [0, 30, 50, 99], lambda i: "0..30" if i < 30 else "30..50" if i < 50 else "50..99", "50..99"),
    ],
)
@pytest.mark.parametrize("predicate", [None, "w % 5 <> 2"])
def test_plan_with_buckets_grows_by_the_version_alone(root, by, edges, label_of, came, predicate):
    """Each bucket goes on with its own samples of three versions; one comes with the first growth, and all of another
    is excluded before the second."""

    def row(i):
        return {"w": i, "shape": "abc"[(i % 3 > 0) + (i > 50)] if i % 3 else "a"}

    def make_bucket(*labels):
        return loader.bucket(by, edges=edges, batch={label: BATCHES[label] for label in labels})

    first = add(root, range(50), row).select("cls")
    view = first if predicate is None else first.where(predicate)
    labels = sorted({label_of(i) for i in range(50)})
    before = loader.plan({"d": view}, seed=3, global_batch=9, bucket_by=make_bucket(*labels))
    root.exclude("d@latest", ["k4", "k36"], reason="bad")
    made = before.grow({"d": add(root, range(50, 80), row)}, step=4, bucket_by=make_bucket(*labels, came))
    with refusal(InvalidPlan, what="bucket_by", given=[came], accepted=labels):
        before.grow({"d": root.open("d@3")}, step=4)
    gone = [i for i in range(80) if label_of(i) == labels[1]]
    root.exclude("d@latest", [f"k{i}" for i in gone if i not in (4, 36)], reason="bad")
    made = made.grow({"d": add(root, range(80, 90), row)}, step=9)
    made.save(root)
    again = loader.open_plan(loader.Root(root.url), made.hash)
    assert again == made
    live = [set(range(50)), set(range(80)) - {4, 36}, set(range(90)) - {4, 36, *gone}]
    taken = []
    for step in range(80):
        ids = made.batch_ids(step)
        assert again.batch_ids(step) == ids
        if step < 4:
            assert before.batch_ids(step) == ids
        numbers = [int(key[1:]) for _, key in ids]
        assert {label_of(i) for i in numbers} == {made.bucket(step)}
        assert len(ids) == BATCHES[made.bucket(step)]
        assert set(numbers) <= live[(step >= 4) + (step >= 9)]
        taken += [(name, i) for (name, _), i in zip(ids, numbers, strict=True)]
    kept = {i for i in live[2] if predicate is None or i % 5 != 2}
    assert {i for name, i in taken if name.endswith("#2")} == kept
    assert again.check_state(before.state(4)) == 4
    listed = again.quarantined({"d": ["k85", "k0"]}, step=9)
    assert {0, 85}.isdisjoint(int(key[1:]) for step in range(9, 60) for _, key in listed.batch_ids(step))


def test_buckets_of_another_predicate_are_refused(root):
    old = add(root, range(20)).select("cls")
    asked = loader.bucket("w % 2")
    before = loader.plan({"d": old}, seed=1, global_batch=2, bucket_by=asked, allow_repeats=True)
    new = add(root, range(20, 30))
    with refusal(InvalidPlan, what="where", where="source 'd/0'", given="(w <> 4) AND ((w % 2) = 0)"):
        before.grow({"d": new.select("cls").where("w <> 4")}, 3)
    with refusal(InvalidPlan, what="bucket", where="bucket('w % 2')", given="7"):
        before.sources["d/0"].view.unsplit("w % 2", None, "7")
    assert before.grow({"d": new}, 3) == before.grow({"d": new.select("cls")}, 3)


def test_nothing_but_manifests_is_read_where_nothing_was_excluded(root, stores):
    add(root, range(20))
    add(root, range(20, 30))
    old, new = root.open("d@1").select(), root.open("d@2").select()
    for version in (old.version, new.version):
        version.store = stores.Counting(version.store)
    delta = new.since(old)
    assert (delta.first, len(delta.removed), len(delta.view)) == (20, 0, 10)
    assert [version.store.total for version in (old.version, new.version)] == [0, 0]


def test_what_does_not_go_on_is_refused(root):
    add(root, range(20))
    add(root, range(20, 30))
    add(root, range(9), name="other")
    one, two = root.open("d@1").select(), root.open("d@2").select()
    for new, old, what, where, value in (
        (one, two, "shards", "d@1", "d@2"),
        (one, one, "version", "d@1", "d@1"),
        (root.open("other@1").select(), one, "version", "other@1", "d@1"),
        (two.where("w > 3"), one, "where", "d@2", "w > 3"),
    ):
        with refusal(InvalidPlan, what=what, where=where, given=value):
            new.since(old)
    root.add_group("d@2", "more", {"sq.json": lambda sample: int(sample["cls"]) ** 2})
    with refusal(InvalidPlan, what="fields", where="d@3", given=["cls", "sq.json"]):
        root.open("d@3").select().since(two)
    assert len(root.open("d@3").select("cls").since(one).view) == 10
    made = loader.plan({"d": one}, seed=1, global_batch=4)
    with refusal(InvalidPlan, what="version", where="source 'd'", given="d@1"):
        made.grow({"d": root.open("other@1")}, 3)


def test_samples_that_a_later_group_brings_into_the_view_are_refused(root):
    """Old parts that lacked the field have it now: the old view's samples are not those of the new one."""
    add(root, range(10))
    root.add_group("d@1", "more", {"sq.json": lambda sample: int(sample["cls"]) ** 2})
    add(root, range(10, 20))
    old = root.open("d@3").select("cls", "sq.json", where_present=True)
    root.add_group("d@3", "more", {"sq.json": lambda sample: int(sample["cls"]) ** 2})
    add(root, range(20, 25))
    new = root.open("d@5").select("cls", "sq.json", where_present=True)
    assert (len(old), len(new)) == (10, 20)
    with refusal(InvalidPlan, what="view", where="d@5", given="d@3"):
        new.since(old)


def test_version_edited_in_its_history_is_refused(root):
    add(root, range(20))
    root.exclude("d@1", ["k3"], reason="bad")
    old, new = root.open("d@2").select(), root.open("d@2")
    new.manifest = json.loads(json.dumps(new.manifest)) | {"exclusions": []}
    new.id = "v-other"
    with refusal(InvalidPlan, what="exclusions", where="d@2", given="d@2"):
        new.select().since(old)
