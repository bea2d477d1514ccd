"""Sets of rows and the parts table against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.shards import bitmap
from loader.dataset.shards.bitmap import BLOCK_BITS, SelectTable, pack, unpack
from loader.errors import Corrupt, FieldNotFound, InvalidRuntime
from tests.refusals import refusal

CI = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def members(draw, max_size=3 * BLOCK_BITS):
    """bool [n]: random with some density, in stretches, or nearly empty blocks."""
    n = draw(st.integers(0, max_size))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(["random", "stretches", "rare", "none", "all"]))
    if kind == "random":
        return rng.random(n) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    if kind == "stretches":
        return (np.arange(n) // draw(st.integers(1, 5000)) % 2).astype(bool)
    if kind == "rare":
        out = np.zeros(n, bool)
        out[rng.integers(0, max(n, 1), min(n, 5))] = n > 0
        return out
    return np.full(n, kind == "all")


@CI
@given(members())
def test_select_is_flatnonzero(properties, bits):
    """`SelectTable.select` is numpy's flatnonzero, for any x in any order."""
    members = bits
    table = bitmap.SelectTable(bitmap.pack(members), len(members))
    expected = np.flatnonzero(members)
    assert len(table) == len(expected)
    assert np.array_equal(bitmap.unpack(table.packed(), len(members)), members)
    x = np.random.default_rng(0).permutation(np.repeat(np.arange(len(expected)), 2))
    assert np.array_equal(table.select(x), expected[x])


@CI
@given(members(200))
def test_pack_is_least_significant_first(bits):
    packed = pack(bits)
    assert [bool(packed[i // 8] >> (i % 8) & 1) for i in range(len(bits))] == bits.tolist()
    assert np.array_equal(unpack(packed, len(bits)), bits)


def test_select_of_nothing():
    assert SelectTable(pack(np.ones(5, bool)), 5).select(np.zeros(0, np.int64)).tolist() == []
    assert len(SelectTable(b"", 0)) == 0


def test_table_costs_an_eighth_of_a_byte_per_row():
    n = 10_000_000
    table = SelectTable(pack(np.random.default_rng(0).random(n) < 0.5), n)
    assert table._bytes.nbytes + table._before.nbytes < n / 8 * 1.02 + 64


@st.composite
def parts(draw):
    n_rows = draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    chosen = draw(st.lists(st.integers(0, len(n_rows) - 1), max_size=6))
    return n_rows, [
        (part, np.array(draw(st.lists(st.booleans(), min_size=n_rows[part], max_size=n_rows[part]))))
        for part in chosen
    ]


@CI
@given(parts())
def test_locate_counts_live_rows(properties, made):
    properties.locate_finds_live_rows(*made)


def test_locate_in_many_parts(properties):
    rng = np.random.default_rng(1)
    n_rows = rng.integers(1, 30, 3000).tolist()
    chosen = rng.integers(0, 3000, 900).tolist()
    properties.locate_finds_live_rows(n_rows, [(p, rng.random(n_rows[p]) < 0.7) for p in chosen])


@pytest.mark.parametrize("ordinal", [-1, 5, 2**40])
def test_ordinal_out_of_range_is_refused(properties, ordinal):
    made = properties.make_parts([2, 4], [(1, np.array([True, False, False, False]))])
    with refusal(InvalidRuntime, what="ordinal", where="test@1", given=ordinal, accepted=[0, 4]):
        made.locate(np.array([0, ordinal], np.int64))


def test_part_without_the_group_is_refused(properties):
    made = properties.make_parts([2, 4], [])
    with refusal(FieldNotFound, what="group", where="test@1: part p1", given="latents"):
        made.shard("latents", 1)


def test_exclusion_of_an_unknown_part_is_corrupt(properties):
    with refusal(Corrupt, what="part", where="test@1", given="p7"):
        properties.make_parts([2], [(7, np.array([True]))])


@settings(max_examples=50)
@given(members=st.lists(st.booleans(), min_size=1, max_size=3 * BLOCK_BITS), data=st.data())
def test_bits_and_complement_of_a_set(members: list[bool], data: st.DataObject) -> None:
    bits = np.array(members)
    table = SelectTable(pack(bits), len(bits))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(bits)), min_size=2, max_size=2)))
    assert np.array_equal(table.bits(*cuts), bits[slice(*cuts)])
    rest = table.after(int(cuts[0]))
    found = rest.select(np.arange(len(rest))) + cuts[0]
    assert found.tolist() == [row for row in np.flatnonzero(bits) if row >= cuts[0]]
