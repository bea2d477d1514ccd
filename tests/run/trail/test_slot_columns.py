"""Samples that are let go one by one leave the checksums and the values of the batch that would have held them all."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.run.batch.collate import collate
from loader.run.batch.columns import EXAMPLE, BatchRow, Columns
from loader.run.trail.slot_columns import SlotColumns, tensor_crcs

RAMP = np.arange(2000, dtype=np.float32)
VALUES = (
    *(1, -3, 2**63, 2.5, float("nan"), True, None, 2**53 + 1),
    *(np.float32(2), np.int64(7), np.array(3), np.array([4.0]), np.zeros((0, 4)), np.bool_(True)),
    *(RAMP, RAMP[::-1], RAMP.reshape(40, 50), RAMP.reshape(50, 40).T, RAMP.astype(">f4"), RAMP.astype("f2")),
    *(RAMP[:6], RAMP[:6].astype(">f4"), np.array(["a", "bc"]), np.array([None, 1]), RAMP[:6] > 2),
    *(torch.arange(6), torch.arange(6).flip(0), torch.tensor(5), torch.arange(6.0).bfloat16()),
    *(
        b"",
        b"bytes",
        b"others",
        "",
        "text",
        "\ud800",
        [1, RAMP[:3]],
        {"a": [1, "b"]},
        {"a": object()},
        object(),
    ),
)
SAMPLES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(VALUES), min_size=1)
ALIKE = st.sampled_from(VALUES).map(lambda value: [{"a": value}, {"a": value}, {"a": value}])


def make_fields(samples, framework, list_fields=frozenset()):
    """The fields of a batch of samples, and of padding where one is None."""
    columns = Columns(len(samples), list_fields=list_fields)
    for row, sample in enumerate(samples):
        if sample is not None:
            BatchRow(columns, row).put(sample, tuple(sample))
    return collate(columns, framework)[0]


def typed_value(value):
    """A value, by its type, dtype, shape and bytes."""
    return type(value), tensor_crcs({"": value}) or repr(value)


@settings(deadline=None)
@given(
    st.lists(st.none() | SAMPLES, min_size=1, max_size=5) | ALIKE,
    st.sampled_from(["numpy", "torch"]),
    st.randoms(use_true_random=False),
)
@example([{"a": RAMP}, None, {"a": RAMP + 1}], "torch", None)
@example([{"a": RAMP}, {"a": RAMP[:-1]}], "numpy", None)
@example([{"a": b"x"}, None, {"b": 1}, {"b": 2.5}], "numpy", None)
@example([{"a": 1}, {"a": 2.5}, None], "torch", None)
def test_samples_one_by_one_are_those_of_their_batch(samples, framework, order) -> None:
    columns = SlotColumns(len(samples), framework)
    real = [slot for slot, sample in enumerate(samples) if sample is not None]
    if order is not None:
        order.shuffle(real)
    found = {slot: columns.add(slot, samples[slot]) for slot in real}
    for slot, values in columns.numbers().items():
        assert not found[slot].keys() & values.keys()
        found[slot] |= values
    whole = make_fields(samples, framework)
    assert columns.crcs() == tensor_crcs(whole)
    assert set(columns.names) == whole.keys()
    for slot in real:
        assert columns.crcs_of(slot, found[slot]) == tensor_crcs(found[slot])
        assert {name: typed_value(value) for name, value in found[slot].items()} == {
            name: typed_value(column[slot]) for name, column in whole.items()
        }


@pytest.mark.parametrize("value", [RAMP, 7, b"x", "y", {"a": 1}])
def test_part_that_is_padding_has_the_shapes_of_another_part(value) -> None:
    columns, like = SlotColumns(3, "torch"), Columns(1)
    columns.add(EXAMPLE, {"a": value})
    BatchRow(like, 0).put({"a": value}, ("a",))
    assert columns.crcs() == tensor_crcs(collate(Columns(3), "torch", like=like)[0])
    assert columns.numbers() == {}


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize(
    "values", [[RAMP, RAMP + 1], [RAMP[:1], RAMP[:1]], [RAMP, RAMP[:0]], [np.array(["a", "bc"])] * 2]
)
def test_field_that_stays_a_list_has_the_checksum_of_a_list(values, framework) -> None:
    list_fields = frozenset({"a"})
    samples = [{"a": values[0]}, None, {"a": values[1]}]
    columns = SlotColumns(3, framework, list_fields)
    for slot in (0, 2):
        columns.add(slot, samples[slot])
    batch = make_fields(samples, framework, list_fields)
    assert [len(value) for value in batch["a"]] == [len(values[0]), 0, len(values[1])]
    assert columns.crcs() == tensor_crcs(batch)
    assert len(columns.crcs()) == 1
