"""Checksums of values that a dataset returns."""

import numpy as np
import pytest
import torch

from loader.run.items.item_digest import field_crc, sample_field_crcs

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
