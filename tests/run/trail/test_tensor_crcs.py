"""Checksums of a batch's fields: of type, shape and values, alike for equal values."""

import numpy as np

from loader.native import crc32c
from loader.run.trail.slot_columns import tensor_crcs


def crc(value):
    return tensor_crcs({"x": value}).get("x")


VALUES = [
    np.zeros((2, 3), np.uint8),
    np.zeros((3, 2), np.uint8),
    np.zeros(6, np.int8),
    np.zeros((0, 3), np.float32),
    np.arange(6, dtype=np.int32),
    np.float64(2.5),
    [np.zeros(2), np.zeros(3)],
    [np.zeros(3), np.zeros(2)],
    ["a", "b"],
    ["ab", ""],
    [b"a", b"b"],
    [None, "None"],
    ["None", None],
    [True, 1],
    [1, True],
    [{"a": [1, 2.5]}, {}],
    [{}, {"a": [1, 2.5]}],
]


def test_every_difference_counts():
    found = [crc(value) for value in VALUES]
    assert None not in found
    assert len(set(found)) == len(VALUES)


def test_formula_is_that_of_the_format():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert crc(array) == crc32c(b"int32 (2, 3) " + array.tobytes())
    assert crc(array[:, ::-1]) == crc32c(b"int32 (2, 3) " + array[:, ::-1].tobytes())
    assert crc(["é", b"xy", None, 7]) == crc32c(
        b"list 4 " + b"text bytes 2 \xc3\xa9" + b"bytes 2 xy" + b"None 7 "
    )


def test_objects_without_bytes_have_none():
    fields = {"a": [object()], "b": np.array([object()]), "c": np.ones(2), "d": [{"e": {1, 2}}]}
    assert set(tensor_crcs(fields)) == {"c"}


def test_tensors_of_torch():
    import torch

    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.bool, torch.int64):
        tensor = torch.arange(6).reshape(2, 3).to(dtype)
        assert crc(tensor) == crc(tensor.clone()) != crc(tensor.flip(0))
        assert crc(tensor.T) == crc(tensor.T.contiguous())
    assert crc(torch.tensor(2.5)) is not None
    ones = torch.ones(2, 3)
    assert crc(ones) == crc32c(b"torch.float32 (2, 3) " + ones.numpy().tobytes())


def test_no_value_of_json_ends_a_training():
    deep = []
    for _ in range(5000):
        deep = [deep]
    huge = 10**5000
    found = tensor_crcs(
        {"half": ["\ud800"], "other": ["\ud801"], "huge": huge, "more": huge + 1, "deep": deep}
    )
    assert found["half"] != found["other"]
    assert found["huge"] != found["more"]
    assert "deep" not in found
