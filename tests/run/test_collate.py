"""Batches from samples: what is stacked, what stays a list, and what padding looks like."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loader.errors import InvalidRuntime
from loader.run.collate import BatchRows, collate

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "?"]


def fields(samples, framework="numpy", **options):
    return collate(samples, framework, **options)[0]


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
def test_the_rest_stays_a_list(values):
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
        got, mask = collate([sample, None, sample], framework)
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


def test_a_batch_of_padding_alone_takes_its_shapes_from_the_example():
    like = {"jpg": np.ones((2, 2, 3), np.uint8), "cls": 3, "txt": "a"}
    got, mask = collate([None, None], "numpy", like=like)
    assert got["jpg"].shape == (2, 2, 2, 3)
    assert not got["jpg"].any()
    assert got["cls"].tolist() == [0, 0]
    assert got["txt"] == ["", ""]
    assert mask.tolist() == [False, False]
    assert collate([None], "numpy")[0] == {}
    assert collate([], "numpy")[0] == {}


def test_a_field_that_some_samples_lack_is_none_there():
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


def test_a_dtype_without_a_tensor_stays_an_array():
    day = np.array("2026-11-20", "datetime64[D]")
    got = fields([{"t": day}, None], "torch")["t"]
    assert isinstance(got, np.ndarray)
    assert got.dtype == day.dtype


def test_the_tensor_is_the_stacked_memory():
    image = np.ones((4, 4, 3), np.uint8)
    tensor = fields([{"jpg": image}] * 2, "torch")["jpg"]
    assert tensor.is_contiguous()
    image[:] = 0
    assert int(tensor.sum()) == 96


def test_other_frameworks_are_refused():
    with pytest.raises(InvalidRuntime, match="'mxnet'"):
        collate([], "mxnet")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_arrays_moved_into_the_batch_are_collated_as_if_they_were_not(framework):
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (40, 50, 3), np.uint8) for _ in range(4)]
    odd = rng.integers(0, 256, (41, 50, 3), np.uint8)
    for samples in (
        [{"x": picture, "n": i, "small": np.zeros(2)} for i, picture in enumerate(pictures)],
        [{"x": pictures[0]}, None, {"x": pictures[2]}, None],
        [{"x": pictures[0]}, {"x": odd}, {"x": pictures[2]}],
        [{"x": pictures[0]}, {"y": pictures[1]}],
        [{"x": picture.astype(">u2")} for picture in pictures],
        [{"x": picture.astype(kind)} for picture, kind in zip(pictures, "BBhB", strict=True)],
    ):
        rows = BatchRows(len(samples))
        moved = [s if s is None else rows.take(slot, s) for slot, s in enumerate(samples)]
        got, got_mask = collate(moved, framework)
        want, want_mask = collate(samples, framework)
        assert got_mask.tolist() == want_mask.tolist()
        assert got.keys() == want.keys()
        for name in want:
            assert type(got[name]) is type(want[name])
            assert as_lists(got[name]) == as_lists(want[name])


def as_lists(value):
    return (
        [as_lists(item) for item in value]
        if isinstance(value, list)
        else getattr(value, "tolist", lambda: value)()
    )


def test_moved_arrays_are_not_copied_again():
    samples = [{"x": np.full((64, 64), i, np.float32)} for i in range(3)]
    rows = BatchRows(3)
    moved = [rows.take(slot, sample) for slot, sample in enumerate(samples)]
    batch = collate(moved, "numpy")[0]["x"]
    assert all(np.shares_memory(batch[slot], moved[slot]["x"]) for slot in range(3))
    assert not np.shares_memory(batch[0], samples[0]["x"])
    swapped = collate(moved[::-1], "numpy")[0]["x"]
    assert swapped[:, 0, 0].tolist() == [2, 1, 0]
