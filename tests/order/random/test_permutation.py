import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order.random import keyed_permutation

SEEDS = st.integers(0, 2**64 - 1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=SEEDS, name=st.text(max_size=8), epoch=st.integers(0, 2**60), ids=st.lists(st.integers(0, 2**63)))
def test_key_is_the_reference(reference, seed, name, epoch, ids):
    assert keyed_permutation.key(seed, name, "P", epoch, *ids) == reference.key(seed, name, "P", epoch, *ids)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(k=SEEDS, values=st.lists(SEEDS, min_size=1, max_size=20))
def test_mixing_is_the_reference_for_numbers_and_arrays(reference, k, values):
    array = np.array(values, dtype=np.uint64)
    assert [keyed_permutation.mix64(v) for v in values] == [reference.mix64(v) for v in values]
    assert keyed_permutation.sub_array(k, array).tolist() == [reference.sub(k, v) for v in values]
    assert keyed_permutation.sub_array(array, k).tolist() == [reference.sub(v, k) for v in values]
    assert keyed_permutation.sub_array(array, array).tolist() == [reference.sub(v, v) for v in values]
    assert [keyed_permutation.sub(k, v) for v in values] == [reference.sub(k, v) for v in values]


def test_fields_are_framed_so_that_no_two_lists_of_fields_look_alike():
    assert keyed_permutation.encode_field(-5) == b"\x03\x00\x00\x00i-5"
    assert keyed_permutation.encode_field("é") == b"\x03\x00\x00\x00s\xc3\xa9"
    lists = [(1, "a"), (1, "a", ""), (11, "a"), ("1", "a"), (1, "a", 1), (1, "a1"), (1, "", "a")]
    assert len({keyed_permutation.hash_fields(*fields) for fields in lists}) == len(lists)


def test_sub_array_leaves_its_arguments_alone():
    values = np.arange(5, dtype=np.uint64)
    keyed_permutation.sub_array(values, values)
    keyed_permutation.sub_array(0, values)
    keyed_permutation.sub_array(values, 0)
    assert values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "n", [*range(1, 20), 64, 127, 128, 129, 130, 143, 144, 145, 1000, 4096, 4097, 20_011]
)
def test_perm_is_a_permutation(properties, n):
    for k in (0, 1, 2**63, 2**64 - 1):
        properties.permutes(n, k)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(k=SEEDS, n=st.one_of(st.integers(1, 300), st.integers(1, 2**53)), data=st.data())
def test_perm_is_the_reference(reference, k, n, data):
    xs = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    want = [reference.perm(k, n, x) for x in xs]
    x = np.array(xs, dtype=np.int64)
    assert keyed_permutation.perm(k, n, x).tolist() == want
    many = np.full(len(xs), k, dtype=np.uint64)
    assert keyed_permutation.perm(many, n, x).tolist() == want


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ks=st.lists(SEEDS, min_size=1, max_size=20), n=st.integers(1, 400), data=st.data())
def test_perm_takes_a_key_per_element(reference, ks, n, data):
    xs = [data.draw(st.integers(0, n - 1)) for _ in ks]
    got = keyed_permutation.perm(np.array(ks, dtype=np.uint64), n, np.array(xs, dtype=np.int64))
    assert got.tolist() == [reference.perm(k, n, x) for k, x in zip(ks, xs, strict=True)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    ks=st.lists(SEEDS, min_size=1, max_size=20),
    sizes=st.one_of(st.integers(1, 200), st.integers(1, 2**53)),
    data=st.data(),
)
def test_perm_takes_a_size_per_element(reference, ks, sizes, data):
    n = [data.draw(st.integers(1, sizes)) for _ in ks]
    xs = [data.draw(st.integers(0, one - 1)) for one in n]
    got = keyed_permutation.perm(np.array(ks, np.uint64), np.array(n, np.int64), np.array(xs, np.int64))
    assert got.tolist() == [reference.perm(*one) for one in zip(ks, n, xs, strict=True)]


@pytest.mark.parametrize("root", [1, 2, 3, 12, 2**26 - 1, 94_906_265])
def test_roots_are_exact(root):
    around = np.array([root * root - 1, root * root, root * root + 1, (root + 1) ** 2 - 1], np.int64)
    assert keyed_permutation._root(around).tolist() == [root - 1, root, root, root]


def test_more_rows_than_are_sorted_at_once(monkeypatch):
    ks = keyed_permutation.sub_array(3, np.arange(1000, dtype=np.uint64))
    x = np.arange(1000, dtype=np.int64) % 5
    whole = keyed_permutation.perm(ks, 5, x)
    monkeypatch.setattr(keyed_permutation, "_ROWS_AT_ONCE", 7)
    assert np.array_equal(keyed_permutation.perm(ks, 5, x), whole)


def test_no_elements():
    empty = np.zeros(0, dtype=np.int64)
    for n in (1, 5, 500):
        assert keyed_permutation.perm(9, n, empty).shape == (0,)
        assert keyed_permutation.perm(np.zeros(0, dtype=np.uint64), n, empty).shape == (0,)


def test_pair_differences_are_those_of_chance(properties):
    """(perm(x + 1) - perm(x)) mod n over many keys, every x equally often."""
    n = 144
    samples = 40000
    seed = 5
    many = keyed_permutation.sub_array(seed, np.arange(samples, dtype=np.uint64))
    counts = np.zeros(n, dtype=np.int64)
    for x in range(n):
        first = keyed_permutation.perm(many, n, np.full(samples, x, dtype=np.int64))
        second = keyed_permutation.perm(many, n, np.full(samples, (x + 1) % n, dtype=np.int64))
        counts += np.bincount((second - first) % n, minlength=n)
    assert counts[0] == 0
    z = properties.z_score(counts[1:], counts.sum() / (n - 1))
    assert abs(z) < 4, z


def test_sums_are_taken_without_overflow(properties):
    """(value + addend) mod modulus, without losing 2^64 on the way."""
    values = (0, 5, 2**40)
    addends = (0, 2**63, 2**64 - 3, 2**64 - 1)
    modulus = 2**40 + 15
    for value in values:
        got = keyed_permutation._add_mod(
            np.full(len(addends), value, dtype=np.uint64), np.array(addends, dtype=np.uint64), modulus
        )
        assert got.tolist() == [(value + addend) % modulus for addend in addends]
