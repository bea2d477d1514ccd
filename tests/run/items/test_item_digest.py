"""Checksums of values that a dataset returns."""

import numpy as np
import pytest
import torch

from loader.run.items.item_digest import column_crcs, field_crc, sample_field_crcs

ROWS = np.arange(6, dtype=np.int32).reshape(2, 3)


def crc(value):
    return field_crc(value, "7")[0]


@pytest.mark.parametrize(
    "same",
    [
        (ROWS, np.asfortranarray(ROWS), ROWS.astype(">i4"), np.repeat(ROWS, 2, 0)[::2]),
        ([1, "a", b"b", 2.5, None], [1, "a", b"b", 2.5, None]),
        (torch.arange(4), torch.arange(8)[:4], torch.arange(0, 4)),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(6, dtype=torch.bfloat16)[::2]),
    ],
)
def test_equal_values_have_one_checksum(same):
    assert len({crc(value) for value in same}) == 1


def test_values_differ_by_dtype_shape_type_and_content():
    values = [
        ROWS,
        ROWS.reshape(3, 2),
        ROWS.astype(np.uint32),
        ROWS + 1,
        torch.from_numpy(ROWS),
        torch.from_numpy(ROWS).float(),
        torch.from_numpy(ROWS).bfloat16(),
        1,
        1.0,
        True,
        "1",
        b"1",
        None,
        [1],
        (1,),
        [[1]],
        [1, 1],
        [11],
        ["1", "1"],
        ["11"],
        float("nan"),
        -0.0,
        0.0,
    ]
    assert len({crc(value) for value in values}) == len(values)


def test_value_without_bytes_counts_as_its_key():
    crcs, without_bytes = sample_field_crcs({"box": object(), "label": 3}, "photo-7")
    assert without_bytes == ["box"]
    assert crcs["box"] == field_crc(object(), "photo-7")[0]
    assert crcs["box"] != field_crc(object(), "photo-8")[0]
    assert crcs["label"] == crc(3)
    assert sample_field_crcs({"boxes": [1, object()]}, "a")[1] == ["boxes"]


def test_object_array_is_checked_by_its_values():
    assert crc(np.array([1, "a"], object)) == crc(np.array([1, "a"], object))
    assert crc(np.array([1, "a"], object)) != crc(np.array([1, "b"], object))


GOLDEN = {
    "array": (ROWS, 0xC404D16B),
    "float16": (ROWS.astype("<f2"), 0x1901702A),
    "text": ("é\udc80", 0x258F08F8),
    "bytes": (b"abc", 0x5887E2FA),
    "true": (True, 0xEF5ACD4F),
    "number": (7, 0xC5DEE2EB),
    "float": (-0.5, 0x6C90EFBB),
    "none": (None, 0x02FEE3B2),
    "complex": (1j, 0x5D068BCA),
    "tensor": (torch.from_numpy(ROWS), 0x780EBBFC),
    "bfloat16": (torch.arange(3).bfloat16(), 0x26834DF7),
    "scalar": (np.float32(2.5), 0xE3C2117A),
    "list": ([1, "a", [ROWS]], 0xD605D470),
    "mapping": ({"a": 1}, 0x4AF2E83D),
    "dates": (ROWS.astype("M8[s]"), 0x6D228FDB),
    "structured": (np.zeros(2, [("a", "<f8"), ("b", "S3")]), 0xE64C51B5),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_checksum_stays_what_trails_hold(name):
    value, expected = GOLDEN[name]
    assert crc(value) == expected
    assert column_crcs([value, value], ["7", "8"]) == [expected, expected]


@pytest.mark.parametrize(
    "values",
    [
        [ROWS, ROWS + 1],
        [ROWS, ROWS.reshape(3, 2)],
        [ROWS, ROWS.astype(np.int64)],
        [ROWS, ROWS.astype(">i4")],
        [ROWS, ROWS[:, ::-1]],
        [ROWS.T, ROWS.T],
        [np.array(1), np.array(2)],
        [np.empty((0, 3)), np.empty((0, 3))],
        [np.array([1, "a"], object)] * 2,
        [np.float32(1), np.float32(2)],
        [np.str_("a"), np.str_("bc")],
        [np.datetime64(1, "s"), np.datetime64(2, "s")],
        [np.ma.masked_greater(ROWS, 2)] * 2,
        [torch.arange(3), torch.arange(3) + 1],
        [torch.arange(3), torch.arange(3).float()],
        [torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(2, 3).t()],
        [torch.ones(3, requires_grad=True)] * 2,
        [torch.ones(3, dtype=torch.complex64).conj()] * 2,
        [1, 2, 10**30],
        [1, True, 1.0, None],
        ["a", "bc", ""],
        [b"a", b"", b"abc"],
        [bytearray(b"a"), bytearray(b"b")],
        [[1], [2, 3]],
        [object(), object()],
    ],
)
def test_column_has_the_checksums_of_its_values(values):
    keys = [str(number) for number in range(len(values))]
    expected = [field_crc(value, key)[0] for value, key in zip(values, keys, strict=True)]
    assert column_crcs(values, keys) == expected
