"""Checksums that follow from checksums are those of the bytes."""

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.dataset.reading.crc_sums import joined_crcs, moved_crc
from loader.dataset.reading.rows_from_maps import RowChecks


def crcs(messages):
    return np.array([google_crc32c.value(one) for one in messages], np.uint32)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(1, 70), st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_joined_checksums_are_those_of_the_bytes_behind_each_other(n, nbytes, blocks, seed):
    rows = np.random.default_rng(seed).integers(0, 256, (blocks, n, nbytes), np.uint8)
    found = joined_crcs(crcs(rows.reshape(-1, nbytes)).reshape(blocks, n), nbytes)
    assert found.dtype == np.uint32
    assert found.tolist() == [google_crc32c.value(block.tobytes()) for block in rows]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.binary(max_size=40), st.binary(min_size=1, max_size=2000))
@example(b"", b"\0")
@example(bytes(128), bytes(2**20 + 1))
def test_a_checksum_moved_over_what_follows(head, rest):
    whole = google_crc32c.value(head + rest)
    assert int(moved_crc(google_crc32c.value(head), len(rest))) ^ google_crc32c.value(rest) == whole


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_rows_are_wrong_are_found(data):
    """In blocks of any sizes, of neighbours or not; rows that nobody added may hold anything."""
    n_rows, nbytes = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 24))
    memory = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, (n_rows, nbytes), np.uint8)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, n_rows - 1), min_size=1))), np.int64)
    wanted = crcs(memory[row].tobytes() for row in rows)
    wrong = data.draw(st.sets(st.sampled_from(range(len(rows)))))
    for number in wrong:
        memory[rows[number], data.draw(st.integers(0, nbytes - 1))] ^= 1 << data.draw(st.integers(0, 7))
    checks, at_once = RowChecks(memory, wanted), data.draw(st.integers(1, 9))
    for first in range(0, len(rows), at_once):
        checks.add(rows[first : first + at_once])
    assert sorted(checks.wrong().tolist()) == sorted(wrong)


@pytest.mark.parametrize("swapped", [(0, 1), (3, 60)])
def test_rows_that_lie_in_each_others_places_are_found(swapped):
    memory = np.random.default_rng(1).integers(0, 256, (64, 300), np.uint8)
    checks = RowChecks(memory, crcs(row.tobytes() for row in memory))
    memory[list(swapped)] = memory[list(swapped)[::-1]]
    checks.add(np.arange(64))
    assert checks.wrong().tolist() == list(swapped)
