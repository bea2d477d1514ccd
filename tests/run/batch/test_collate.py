"""Batches from samples: what is stacked, what stays a list, and what padding looks like."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loader.errors import InvalidRuntime
from loader.run.batch.collate import collate
from loader.run.batch.columns import Columns
from tests.refusals import refusal

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "?"]


def columns(samples):
    """Columns with these samples; None is padding."""
    made = Columns(len(samples))
    for slot, sample in enumerate(samples):
        if sample is not None:
            made.put_names([slot], tuple(sample))
            for field, value in sample.items():
                made.put(slot, field, value)
    return made


def fields(samples, framework="numpy"):
    return collate(columns(samples), framework)[0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), st.data())
def test_equal_arrays_are_stacked_in_both_frameworks(dtype, shape, data):
    arrays = data.draw(st.lists(hnp.arrays(dtype, shape), min_size=1, max_size=4))
    samples = [{"x.npy": array} for array in arrays]
    stacked = fields(samples)["x.npy"]
    assert stacked.dtype == np.dtype(dtype)
    assert stacked.tobytes() == np.stack(arrays).tobytes()
    tensor = fields(samples, "torch")["x.npy"]
    assert tensor.shape == stacked.shape
    assert tensor.numpy().dtype == stacked.dtype
    assert tensor.numpy().tobytes() == stacked.tobytes()


def test_unequal_shapes_come_as_a_list_of_tensors():
    samples = [{"jpg": np.zeros((2, 3, 3), np.uint8)}, {"jpg": np.ones((4, 3, 3), np.uint8)}, None]
    got = fields(samples, "torch")["jpg"]
    assert [tuple(item.shape) for item in got[:2]] == [(2, 3, 3), (4, 3, 3)]
    assert got[2] is None
    assert all(isinstance(item, np.ndarray) for item in fields(samples[:2])["jpg"])


def test_unequal_dtypes_are_not_cast():
    got = fields([{"x": np.zeros(2, np.int32)}, {"x": np.zeros(2, np.int64)}])["x"]
    assert [item.dtype for item in got] == [np.int32, np.int64]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], np.int64),
        ([2**63 - 1, -(2**63)], np.int64),
        ([True, False], np.bool_),
        ([1.5, 2.5], np.float64),
        ([1, 2.5], np.float64),
        ([np.float32(1), np.float32(2)], np.float32),
    ],
)
def test_numbers_become_arrays(values, dtype):
    got = fields([{"n": value} for value in values])["n"]
    assert got.dtype == dtype
    assert got.tolist() == values
    assert fields([{"n": value} for value in values], "torch")["n"].tolist() == values


@pytest.mark.parametrize(
    "values",
    [
        ["a", "bc"],
        [b"a", b""],
        [{"a": 1}, {"a": 2}],
        [[1], [2]],
        [2**63, 1],
        [True, 1],
        [2**53 + 1, 0.5],
        [None, 1],
        [np.array([None]), np.array([None])],
        [np.zeros(1), 0.0],
        [0.0, np.zeros(1)],
    ],
)
def test_rest_stays_a_list(values):
    for framework in ("numpy", "torch"):
        got = fields([{"x": value} for value in values], framework)["x"]
        assert isinstance(got, list)
        assert [type(item) for item in got] == [
            torch.Tensor
            if framework == "torch" and isinstance(v, np.ndarray) and not v.dtype.hasobject
            else type(v)
            for v in values
        ]


def test_padding_is_zeros_blanks_or_none():
    sample = {
        "jpg": np.ones((2, 2, 3), np.uint8),
        "cls": 3,
        "txt": "a",
        "bin": b"a",
        "json": {"a": 1},
        "s": np.array("ab"),
    }
    for framework in ("numpy", "torch"):
        got, mask = collate(columns([sample, None, sample]), framework)
        assert mask.tolist() == [True, False, True]
        assert isinstance(mask, torch.Tensor if framework == "torch" else np.ndarray)
        assert got["jpg"].shape == (3, 2, 2, 3)
        assert int(got["jpg"][1].sum()) == 0
        assert int(got["jpg"].sum()) == 24
        assert got["cls"].tolist() == [3, 0, 3]
        assert got["txt"] == ["a", "", "a"]
        assert got["bin"] == [b"a", b"", b"a"]
        assert got["json"] == [{"a": 1}, None, {"a": 1}]
        assert got["s"].tolist() == ["ab", "", "ab"]


def test_batch_of_padding_alone_takes_its_shapes_from_the_example():
    like = {"jpg": np.ones((2, 2, 3), np.uint8), "cls": 3, "txt": "a"}
    got, mask = collate(columns([None, None]), "numpy", like=columns([like]))
    assert got["jpg"].shape == (2, 2, 2, 3)
    assert not got["jpg"].any()
    assert got["cls"].tolist() == [0, 0]
    assert got["txt"] == ["", ""]
    assert mask.tolist() == [False, False]
    assert collate(columns([None]), "numpy")[0] == {}
    assert collate(columns([]), "numpy")[0] == {}


def test_field_that_some_samples_lack_is_none_there():
    got = fields([{"jpg": 1, "cls": 2}, {"jpg": 1, "txt": "a"}])
    assert list(got) == ["jpg", "cls", "txt"]
    assert got["cls"] == [2, None]
    assert got["txt"] == [None, "a"]


def test_tensors_of_a_transform_are_stacked():
    samples = [{"x": torch.ones(3)}, None, {"x": torch.zeros(3)}]
    assert fields(samples, "torch")["x"].tolist() == [[1] * 3, [0] * 3, [0] * 3]
    assert isinstance(fields([{"x": torch.ones(3)}, {"x": torch.ones(2)}], "torch")["x"], list)
    assert isinstance(fields(samples, "numpy")["x"], list)


def test_awkward_memory_is_taken():
    big = np.arange(6, dtype=">f4").reshape(2, 3)
    frozen = np.arange(3)
    frozen.flags.writeable = False
    got = fields(
        [{"a": big, "b": frozen, "c": big[::-1]}, {"a": big, "b": frozen[:2], "c": big[:1, ::-1]}], "torch"
    )
    assert got["a"].dtype == torch.float32
    assert got["a"][1].tolist() == big.tolist()
    assert got["b"][0].tolist() == [0, 1, 2]
    assert got["c"][0].tolist() == big[::-1].tolist()
    assert got["c"][1].tolist() == [[2, 1, 0]]


def test_dtype_without_a_tensor_stays_an_array():
    day = np.array("2026-11-20", "datetime64[D]")
    got = fields([{"t": day}, None], "torch")["t"]
    assert isinstance(got, np.ndarray)
    assert got.dtype == day.dtype


def test_tensor_is_the_stacked_memory():
    image = np.ones((4, 4, 3), np.uint8)
    tensor = fields([{"jpg": image}] * 2, "torch")["jpg"]
    assert tensor.is_contiguous()
    image[:] = 0
    assert int(tensor.sum()) == 96


def test_other_frameworks_are_refused():
    with refusal(InvalidRuntime, what="framework", given="mxnet"):
        collate(columns([]), "mxnet")


def test_large_arrays_are_moved_into_the_batch_and_small_ones_held():
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 50, 3), np.uint8) for _ in range(4)]
    odd = rng.integers(0, 256, (41, 50, 3), np.uint8)
    small = [picture[:2, :2] for picture in pictures]
    for values in (
        pictures,
        [pictures[0], None, pictures[2], None],
        [pictures[0], odd, pictures[2]],
        [odd, pictures[1], None],
        [picture.astype(">u2") for picture in pictures],
        [picture.astype(kind) for picture, kind in zip(pictures, "BBhB", strict=True)],
        small,
        [pictures[0], small[0]],
        [pictures[0], np.array([{"a": 1}] * 1000)],
    ):
        got = fields([None if value is None else {"x": value} for value in values])["x"]
        real = [value for value in values if value is not None]
        if len({(value.shape, value.dtype) for value in real}) == 1:
            blank = np.zeros_like(real[0])
            wanted = np.stack([blank if value is None else value for value in values])
            assert got.dtype == wanted.dtype.newbyteorder("=")
            assert got.tolist() == wanted.tolist()
        else:
            assert isinstance(got, list)
            assert [one if one is None else (one.dtype, one.tolist()) for one in got] == [
                one if one is None else (one.dtype, one.tolist()) for one in values
            ]


def test_what_lies_in_its_row_is_not_copied():
    made = Columns(3)
    memory = made.rows("x", (64, 64), np.dtype(np.float32))
    for slot in range(3):
        memory[slot] = slot
        made.put(slot, "x", memory[slot], in_row=True)
        made.put_names([slot], ("x",))
    assert made.rows("x", (64, 63), np.dtype(np.float32)) is None
    assert made.rows("x", (64, 64), np.dtype(np.int32)) is None
    batch = collate(made, "numpy")[0]["x"]
    assert np.shares_memory(batch, memory)
    assert batch[:, 0, 0].tolist() == [0, 1, 2]


def test_row_that_was_offered_and_not_taken_is_padding_or_replaced():
    """A decoder that failed has left anything there."""
    made = Columns(3)
    made.rows("x", (4,), np.dtype(np.int64))[:] = 77
    made.put(0, "x", np.arange(4))
    made.put(2, "x", np.arange(4) + 1)
    made.put_names([0, 2], ("x",))
    assert collate(made, "numpy")[0]["x"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [1, 2, 3, 4]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_lies_in_rows_the_batch_is_the_same(data):
    """Some values decoded into their rows, some put, some missing, some of other shapes, some slots padding."""
    shapes = data.draw(st.lists(st.sampled_from([(3,), (3,), (2, 2), None]), min_size=1, max_size=6))
    shape = data.draw(st.sampled_from([(3,), (2, 2)]))
    made, samples = Columns(len(shapes)), []
    for slot, one in enumerate(shapes):
        sample = {} if one is None else {"x": np.full(one, slot, np.int16)}
        sample |= {"y": slot} if data.draw(st.booleans()) else {}
        samples.append(sample or None)
        rows = made.rows("x", shape, np.dtype(np.int16))
        for field, value in sample.items():
            if field == "x" and value.shape == shape and data.draw(st.booleans()):
                rows[slot] = value
                made.put(slot, field, rows[slot], in_row=True)
            else:
                made.put(slot, field, value)
        if sample:
            made.put_names([slot], tuple(sample))
    got, mask = collate(made, "numpy")
    want, _ = collate(columns(samples), "numpy")
    assert mask.tolist() == [sample is not None for sample in samples]
    assert list(got) == list(want)
    assert {name: as_lists(value) for name, value in got.items()} == {
        name: as_lists(value) for name, value in want.items()
    }


def as_lists(value):
    return (
        [as_lists(item) for item in value]
        if isinstance(value, list)
        else getattr(value, "tolist", lambda: value)()
    )
