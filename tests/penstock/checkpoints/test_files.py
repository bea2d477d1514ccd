"""The files of checkpoints, without torch: boxes, parts that other tools read, markers, and which stay."""

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_safetensors

from loader.errors import CheckpointNotFound, Corrupt, FormatTooNew, InvalidName, InvalidRuntime
from loader.storage import ObjectInfo, open_store
from penstock.checkpoints import marker, retention
from penstock.checkpoints.marker import Checkpoint, StoredObject
from penstock.checkpoints.parts import (
    BLOCK_BYTES,
    TensorPiece,
    checksums,
    contiguous_boxes,
    extent,
    pack_parts,
    seal_part,
)
from penstock.checkpoints.ranks import map_in_order
from penstock.checkpoints.retention import CheckpointRetention
from tests.refusals import refusal

SIZES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


def checkpoint(step, *names, run="run"):
    index, *parts = [StoredObject(name=name, nbytes=3, sha256=marker.sha256(b"abc")) for name in names]
    return Checkpoint(run=run, step=step, at_us=1, world_size=2, index=index, parts=tuple(parts))


@given(SIZES, st.integers(1, 50))
@settings(derandomize=True, deadline=None)
def test_boxes_fill_an_array_each_one_run_of_it(sizes, most):
    whole = np.arange(prod(sizes)).reshape(sizes)
    found = []
    for offsets, inner in contiguous_boxes(sizes, most):
        box = whole[tuple(slice(low, low + size) for low, size in zip(offsets, inner, strict=True))].reshape(
            -1
        )
        assert 0 < len(box) <= max(most, 1)
        assert list(box) == list(range(box[0], box[0] + len(box)))
        found += list(box)
    assert found == list(range(prod(sizes)))


@given(st.data(), SIZES.filter(lambda sizes: 0 not in sizes))
@settings(derandomize=True, deadline=None)
def test_extent_of_a_box_is_the_shortest_run_that_holds_it(data, sizes):
    offsets = [data.draw(st.integers(0, size - 1)) for size in sizes]
    lengths = [data.draw(st.integers(1, size - low)) for size, low in zip(sizes, offsets, strict=True)]
    whole = np.arange(prod(sizes)).reshape(sizes)
    box = whole[tuple(slice(low, low + size) for low, size in zip(offsets, lengths, strict=True))]
    first, count = extent(sizes, offsets, lengths)
    assert (first, first + count - 1) == (box.min(), box.max())


def piece(label, dtype, array):
    return TensorPiece(
        item=array, label=label, dtype=dtype, within=(), offsets=(), sizes=array.shape, nbytes=array.nbytes
    )


def test_part_is_a_safetensors_file_whose_pieces_are_where_the_index_says():
    arrays = {
        "odd": np.frombuffer(b"abc", np.uint8),
        "wide": np.arange(7, dtype=np.float64),
        "half[0:3]": np.arange(3, dtype=np.float16),
        "many": np.arange(BLOCK_BYTES // 4 + 5, dtype=np.int32),
    }
    names = {"uint8": "U8", "float64": "F64", "float16": "F16", "int32": "I32"}
    (part,) = pack_parts([piece(label, names[str(a.dtype)], a) for label, a in arrays.items()], 2**30)
    data, placed = seal_part("x-0.safetensors", part, [one.item.data.cast("B") for one in part])
    found = load_safetensors(bytes(data))
    assert found.keys() == arrays.keys()
    for one, where in zip(part, placed, strict=True):
        assert (found[one.label] == one.item).all()
        assert data[where.offset : where.offset + where.nbytes] == one.item.tobytes()
        assert where.offset % one.item.itemsize == 0  # whoever maps the file finds it aligned
        assert where.crc32c == checksums(memoryview(one.item.tobytes()))
        assert where.part == StoredObject(
            name="x-0.safetensors", nbytes=len(data), sha256=marker.sha256(data)
        )
    assert [len(where.crc32c) for where in placed] == [1, 2, 1, 1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30))), st.integers(1, 40))
@settings(derandomize=True, deadline=None)
def test_parts_keep_to_their_size_and_have_no_name_twice(drawn, most):
    pieces = [piece(label, "U8", np.zeros(size, np.uint8)) for label, size in drawn]
    parts = list(pack_parts(pieces, most))
    assert [one for part in parts for one in part] == pieces
    for part in parts:
        assert len(part) == 1 or sum(one.nbytes for one in part) <= most
        assert len({one.label for one in part}) == len(part)


def test_markers_bytes_are_these():
    made = checkpoint(12, "a-index.json", "b-00000.safetensors")
    assert marker.marker_key("run", 12) == "checkpoints/run/steps/000000000012.json"
    assert made.key(made.parts[0]) == "checkpoints/run/parts/000000000012/b-00000.safetensors"
    sha = '"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"'
    assert marker.encode(made).decode() == (
        '{"at_us":1,"checkpoint":1,"index":{"name":"a-index.json","nbytes":3,' + sha + '},"loader":null,'
        '"parts":[{"name":"b-00000.safetensors","nbytes":3,' + sha + '}],"plan":null,"run":"run",'
        '"sha256":"' + json.loads(marker.encode(made))["sha256"] + '","step":12,"versions":[],"world_size":2}'
    )
    assert json.loads(marker.encode(made))["sha256"].startswith("47e07c2b")
    assert marker.decode(marker.encode(made), "x") == made


def test_marker_edited_by_hand_or_of_another_step_or_newer_is_refused():
    store = open_store("memory://markers-refused")
    data = marker.encode(checkpoint(12, "a-index.json"))
    store.put(marker.marker_key("run", 12), data.replace(b'"nbytes":3', b'"nbytes":4'))
    with pytest.raises(Corrupt, match="its own sha256 does not match"):
        marker.read(store, "run", 12)
    store.delete_many([marker.marker_key("run", 12)])
    for step, bad in (
        (1, data.replace(b'"nbytes":3', b'"nbytes":4')),
        (2, b"{}"),
        (3, b"\xff"),
        (4, data),
        (5, b"[]"),
    ):
        store.put(marker.marker_key("run", step), bad)
        with refusal(Corrupt, what="marker", where=f"run@{step}"):
            marker.read(store, "run", step)
    body = {**json.loads(data), "checkpoint": 2}
    del body["sha256"]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["sha256"] = marker.sha256(text.encode())
    store.put(marker.marker_key("run", 6), json.dumps(body).encode())
    with refusal(
        FormatTooNew,
        what="checkpoint format",
        within="steps/000000000006.json",
    ):
        marker.read(store, "run", 6)
    with refusal(
        CheckpointNotFound,
        what="step 7",
        where="memory://markers-refused: run 'run'",
        given=7,
        accepted="2, 3, 4, 5, 6",
    ):
        marker.read(store, "run", 7)
    for name in ("", "a/b", "../x", "-a", "a" * 129):
        with pytest.raises(InvalidName):
            marker.check_run(name)


@given(
    committed=st.sets(st.integers(0, 40), min_size=1, max_size=12),
    torn=st.sets(st.integers(0, 60), max_size=8),
    last=st.one_of(st.none(), st.integers(1, 6)),
    every=st.integers(1, 12),
)
@settings(derandomize=True, deadline=None)
def test_what_stays_after_a_commit(committed, torn, last, every):
    store = open_store("memory://retention")
    store.delete_many([one.key for one in store.list()])
    other = checkpoint(7, "x-index.json", run="other")
    made = {step: checkpoint(step, f"{step}-index.json", f"{step}-0.safetensors") for step in committed}
    for one in [*made.values(), other]:
        for part in one.objects:
            store.put(one.key(part), b"abc")
        store.put(marker.marker_key(one.run, one.step), marker.encode(one))
    newest = max(committed)
    for step in torn:  # a save that died left something there
        store.put(marker.part_key("run", step, "dead-0.safetensors"), b"xyz")
    retention.apply(
        store, CheckpointRetention(keep_last=last, keep_every=every if last else None), made[newest]
    )

    stay = {
        step
        for step in committed
        if last is None or sum(other > step for other in committed) < last or step % every == 0
    }
    assert newest in stay
    expected = {marker.marker_key("run", step) for step in stay}
    expected |= {made[step].key(part) for step in stay for part in made[step].objects}
    older = sorted(stay)[:-2]  # their leftovers were deleted when they were the newest, or the one before
    expected |= {
        marker.part_key("run", step, "dead-0.safetensors") for step in torn if step > newest or step in older
    }
    expected |= {marker.marker_key("other", 7), other.key(other.index)}
    assert {one.key for one in store.list()} == expected
    assert list(marker.runs(store)) == ["other", "run"]


def test_nothing_is_deleted_by_a_listing_without_what_was_just_committed(caplog):
    store = open_store("memory://retention-of-an-odd-listing")
    for step in (1, 2):
        made = checkpoint(step, f"{step}-index.json")
        store.put(made.key(made.index), b"abc")
        store.put(marker.marker_key("run", step), marker.encode(made))
    before = [one.key for one in store.list()]
    retention.apply(store, CheckpointRetention(keep_last=1), checkpoint(3, "3-index.json"))
    assert [one.key for one in store.list()] == before
    assert "step 3 was just committed, and is not listed" in caplog.text


class Listed:
    """A store whose listings lack some keys, and have others that are not there."""

    def __init__(self, store, *, without=(), ghosts=()):
        self._store, self._without, self._ghosts = store, set(without), set(ghosts)

    def __getattr__(self, name):
        return getattr(self._store, name)

    def list(self, prefix="", start_after=None):
        there = {one.key: one for one in self._store.list(prefix, start_after)}
        there |= {
            key: ObjectInfo(key=key, nbytes=1, etag="old") for key in self._ghosts if key.startswith(prefix)
        }
        return iter([there[key] for key in sorted(there) if key not in self._without])


def committed(name, *steps):
    """(a store, step -> its checkpoint, with a marker)."""
    store, made = open_store(f"memory://{name}"), {}
    store.delete_many([one.key for one in store.list()])
    for step in steps:
        one = made[step] = checkpoint(step, f"{step}-index.json", f"{step}-0.safetensors")
        for part in one.objects:
            store.put(one.key(part), b"abc")
        store.put(marker.marker_key("run", step), marker.encode(one))
    return store, made


@given(
    steps=st.sets(st.integers(0, 30), min_size=1, max_size=8),
    data=st.data(),
    keep=st.sampled_from(
        [
            CheckpointRetention(),
            CheckpointRetention(keep_last=1),
            CheckpointRetention(keep_last=3, keep_every=4),
        ]
    ),
)
@settings(derandomize=True, deadline=None)
def test_no_checkpoint_loses_its_parts_to_a_listing_without_its_marker(steps, data, keep):
    """Nor any that would stay, whatever markers a listing lacks."""
    store, made = committed("retention-of-a-lacking-listing", *steps)
    newest = max(steps)
    unlisted = data.draw(st.sets(st.sampled_from(sorted(steps))))
    lacks = [marker.marker_key("run", step) for step in unlisted - {newest}]
    retention.apply(Listed(store, without=lacks), keep, made[newest])
    left = marker.steps(store, "run")
    assert keep.kept(steps) <= set(left)
    keys = {one.key for one in store.list()}
    assert all(made[step].key(part) in keys for step in left for part in made[step].objects)


def test_marker_that_is_listed_and_not_there_takes_the_place_of_none():
    store, made = committed("retention-of-a-late-listing", 1, 2, 3, 6)
    late = Listed(store, ghosts=[marker.marker_key("run", step) for step in (4, 5)])
    retention.apply(late, CheckpointRetention(keep_last=3), made[6])
    assert marker.steps(store, "run") == [2, 3, 6]


def test_no_parts_go_that_a_link_leads_to(tmp_path):
    """A checkpoint of another run, laid into this one; its folder as a whole may lie on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "checkpoints").symlink_to(tmp_path / "disk")
    store = open_store(tmp_path / "root")
    for run, step in (("run", 1), ("run", 2), ("run", 3), ("good", 9)):
        made = checkpoint(step, f"{step}-index.json", run=run)
        store.put(made.key(made.index), b"abc")
        store.put(marker.marker_key(run, step), marker.encode(made))
    parts = tmp_path / "disk" / "run" / "parts"
    (parts / f"{0:012d}").symlink_to(tmp_path / "disk" / "good" / "parts" / f"{9:012d}")
    (parts / f"{2:012d}" / "x").symlink_to(parts / f"{3:012d}")
    retention.apply(store, CheckpointRetention(keep_last=1), checkpoint(3, "3-index.json"))
    assert marker.steps(store, "run") == [3]
    left = sorted(path.relative_to(tmp_path / "disk") for path in (tmp_path / "disk").rglob("*-index.json"))
    assert [str(path) for path in left] == [
        f"good/parts/{9:012d}/9-index.json",
        f"run/parts/{3:012d}/3-index.json",
    ]


@pytest.mark.parametrize("data", [b"", b"{}", None])
def test_beside_a_marker_that_says_nothing_everything_stays(data, caplog):
    store = open_store("memory://retention-beside-a-damaged-marker")
    store.delete_many([one.key for one in store.list()])
    two, three = checkpoint(2, "2-index.json"), checkpoint(3, "3-index.json")
    for made in (two, three):
        store.put(made.key(made.index), b"abc")
        store.put(marker.marker_key("run", made.step), marker.encode(made))
    store.put(marker.part_key("run", 3, "dead-0.safetensors"), b"xyz")
    get = store.get
    if data is None:  # somebody deletes it meanwhile

        def gone(key):
            store.get = get
            store.delete_many([key])
            return get(key)

        store.get = gone
    else:
        store.put(marker.marker_key("run", 2), data)
    retention.apply(store, CheckpointRetention(), three)
    here = {one.key for one in store.list("checkpoints/run/parts/")}
    assert here == {two.key(two.index), three.key(three.index)}
    assert "beside step 2 of run run stay" in caplog.text


def test_no_more_items_are_at_work_or_done_and_waiting_than_asked_for():
    begun = []

    def items():
        for number in range(20):
            begun.append(number)
            yield number

    for done, number in enumerate(map_in_order(lambda number: number, items(), at_once=3)):
        assert number == done
        assert len(begun) <= done + 4  # three, and the one that waits for room


@pytest.mark.parametrize(
    ("wrong", "name", "value"),
    [
        ({"keep_last": 0}, "keep_last", 0),
        ({"keep_last": True}, "keep_last", True),
        ({"keep_last": 2.5}, "keep_last", 2.5),
        ({"keep_every": 5}, "keep_every", 5),
        ({"keep_last": 1, "keep_every": 0}, "keep_every", 0),
    ],
)
def test_retention_that_means_nothing_is_refused(wrong, name, value):
    with refusal(InvalidRuntime, what=name, given=value):
        CheckpointRetention(**wrong)
