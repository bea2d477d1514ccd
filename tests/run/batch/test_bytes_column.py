"""Columns of byte strings that lie in one piece of memory."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.run.batch.columns import BytesColumn

OPTIONS = {"framework": "numpy", "workers": 0, "decode": False}


def column(items, gap=3):
    """Items from the last to the first in memory, with other bytes between them."""
    memory, begin = bytearray(b"?" * gap), []
    for one in reversed(items):
        begin.insert(0, len(memory))
        memory += one + b"?" * gap
    sizes = np.array([len(one) for one in items], np.int64)
    return BytesColumn(np.frombuffer(bytes(memory), np.uint8), np.array(begin, np.int64), sizes)


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(-7, 7), st.integers(-7, 7))
def test_it_is_what_a_list_is(items, low, high):
    found = column(items)
    assert found == items
    assert found == column(items, gap=0)
    assert list(found) == items
    assert (len(found), found.nbytes) == (len(items), sum(map(len, items)))
    assert found[low:high] == items[low:high]
    assert isinstance(found[low:high], BytesColumn)
    assert found != [*items, b""]
    assert items[::-1] == list(reversed(found))
    for one in items:
        assert one in found
        assert found.index(one) == items.index(one)
    restored = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    assert restored == items
    assert len(restored.parts()[0]) == found.nbytes, "what lies beside the items stays behind"


def test_items_are_bytes_and_views_are_not_copies():
    found = column([b"one", b"", b"three"])
    assert [type(one) for one in found] == [bytes] * 3
    assert found[-1] == b"three"
    assert bytes(found.view(2)) == b"three"
    assert found.view(2).readonly
    assert np.shares_memory(np.frombuffer(found.view(2), np.uint8), found.parts()[0])
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            found[wrong]
    with pytest.raises(TypeError):
        hash(found)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    with loader.Root(tmp_path_factory.mktemp("bytes") / "root") as root:
        with root.write("d", part_samples=7) as writer:
            for i in range(23):
                writer.add(f"k{i:02d}", {"blob.bin": bytes([i]) * (i % 5 * 3000), "txt": f"number {i}"})
        yield root


def expected_bytes(batch):
    numbers = [None if one is None else int(one[1][1:]) for one in batch.ids]
    return [b"" if i is None else bytes([i]) * (i % 5 * 3000) for i in numbers]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_undecoded_fields_of_a_disk(root, executor):
    """Also where batches are made together, at padding, and in another process."""
    plan = loader.plan({"d": root.open("d@latest")}, seed=1, global_batch=5)
    with loader.Loader(plan, 0, 1, **{**OPTIONS, "workers": 2}, executor=executor, epochs=9) as batches:
        made = list(batches)
    assert len(made) == 42
    keys = [f"k{i:02d}" for i in range(23)]
    ordinals = dict(zip(keys, root.open("d@latest").select("txt").ordinals(keys).tolist(), strict=True))
    for batch in made:
        assert isinstance(batch["blob.bin"], BytesColumn)
        assert batch["blob.bin"] == expected_bytes(batch)
        assert batch["txt"] == [
            b"" if one is None else f"number {int(one[1][1:])}".encode() for one in batch.ids
        ]
        assert batch.ordinals.tolist() == [-1 if one is None else ordinals[one[1]] for one in batch.ids]
        assert batch.sources.tolist() == [-1 if one is None else 0 for one in batch.ids]
        assert batch.nbytes == sum(map(len, batch["blob.bin"])) + sum(map(len, batch["txt"]))
    assert made[-1].ids[-1] is None, "the last batch has padding"


def test_batch_keeps_its_bytes_while_others_are_made(root):
    plan = loader.plan({"d": root.open("d@latest")}, seed=1, global_batch=4)
    with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
        first = next(batches)
        wanted = expected_bytes(first)
        for _ in range(200):
            next(batches)
        assert first["blob.bin"] == wanted
        pieces = first.micro_batches(2)
    assert [one for piece in pieces for one in piece["blob.bin"]] == wanted
    assert [ordinal for piece in pieces for ordinal in piece.ordinals.tolist()] == first.ordinals.tolist()
    assert pickle.loads(pickle.dumps(first))["blob.bin"] == wanted  # noqa: S301 - our own
