"""The verbs that read and check sample bytes: the C extension does what Python says, byte for byte, error for error."""

import mmap
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import pairwise

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import loader.native
from loader.native import RIGHT, UNREAD, WRONG, python

VERBS = [python]
if loader.native.KIND != "Python":
    from loader.native import _native

    VERBS.append(_native)
each = pytest.mark.parametrize("verbs", VERBS, ids=lambda verbs: verbs.__name__.rpartition(".")[2])
mapped = pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])


def int64(*numbers):
    return np.array(numbers, np.int64)


def crcs_of(*messages):
    return int64(*map(google_crc32c.value, messages))


@contextmanager
def opened(folder, contents, mapped=False):
    """Files with these contents, as the verbs take them."""
    files = []
    for i, content in enumerate(contents):
        path = folder / f"{i}.bin"
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        files.append(
            (descriptor, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if mapped and content else None)
        )
    yield files
    for descriptor, _ in files:
        os.close(descriptor)


@each
def test_the_check_value_of_crc_32c(verbs):
    """Of RFC 3720, appendix B.4."""
    assert verbs.crc32c(b"123456789") == 0xE3069283
    assert verbs.crc32c(bytes(32)) == 0x8A9136AA
    assert verbs.crc32c(bytes([255] * 32)) == 0x62A8AB43
    assert verbs.crc32c(b"") == 0


@each
def test_checksums_of_any_length_at_any_place(verbs):
    """Lengths around a word, and around the lanes that are checked side by side."""
    data = np.random.default_rng(3).bytes(40_000)
    for nbytes in (*range(70), 255, 256, 767, 768, 769, 1536, 12_287, 12_288, 12_289, 13_057, 24_576, 39_990):
        for begin in (0, 1, 3, 8):
            part = memoryview(data)[begin : begin + nbytes]
            assert verbs.crc32c(part) == google_crc32c.value(bytes(part)), (begin, nbytes)


@each
@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_a_checksum_goes_on_where_another_ended(verbs, data, cuts):
    crc = 0
    for begin, end in pairwise([0, *sorted(cuts), 2000]):
        crc = verbs.crc32c(data[begin:end], crc)
    assert crc == google_crc32c.value(data)


@st.composite
def gathers(draw):
    """(contents of files, which, begin, head, rows, number of rows, bytes of a row, checksums), perhaps wrong ones."""
    contents = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
    head, row_bytes = draw(st.binary(max_size=3)), draw(st.integers(0, 8))
    n, n_rows = draw(st.integers(0, 12)), draw(st.integers(1, 14))
    whole = len(head) + row_bytes
    places = st.tuples(st.integers(0, len(contents) - 1), st.integers(0, 60))
    items = draw(st.lists(places, min_size=n, max_size=n))
    if draw(st.booleans()):
        contents = [head + one[len(head) :] for one in contents]
        items = [(i, 0) if draw(st.booleans()) else (i, begin) for i, begin in items]
    n_rows = max(n_rows, n)
    rows = draw(st.permutations(range(n_rows)))[:n]
    flips = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2**32]), min_size=n, max_size=n))
    messages = [contents[i][begin : begin + whole] for i, begin in items]
    crcs = int64(*(google_crc32c.value(one) ^ flip for one, flip in zip(messages, flips, strict=True)))
    which, begin = int64(*(i for i, _ in items)), int64(*(b for _, b in items))
    if n and draw(st.integers(0, 3)) == 0:
        spoilt = draw(st.sampled_from([which, begin]))
        spoilt[draw(st.integers(0, n - 1))] = draw(
            st.one_of(st.integers(-2, 60), st.sampled_from([2**62, -(2**62), 2**63 - 1]))
        )
    return contents, which, begin, head, int64(*rows), n_rows, row_bytes, crcs


def outcome(verb, *arguments):
    try:
        return verb(*arguments)
    except ValueError as error:
        return str(error)


alike = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@alike
@given(of=gathers(), mapped=st.booleans())
@example(of=([b"headvalue"], int64(0), int64(0), b"head", int64(1), 2, 5, crcs_of(b"headvalue")), mapped=True)
def test_rows_are_gathered_alike(of, mapped, tmp_path):
    contents, which, begin, head, rows, n_rows, row_bytes, crcs = of
    found = []
    for verbs in VERBS:
        memory, status = np.full(n_rows * row_bytes, 7, np.uint8), np.full(len(which), 9, np.uint8)
        with opened(tmp_path, contents, mapped) as files:
            said = outcome(
                verbs.gather_rows, files, which, begin, head, rows, memory, row_bytes, crcs, status
            )
        if not isinstance(said, str):  # rows that are not right hold anything
            memory.reshape(n_rows, row_bytes)[rows[status != RIGHT]] = 0
            said = None
        found.append((said, memory.tobytes(), status.tobytes()))
    assert all(one == found[0] for one in found)


@alike
@given(of=gathers(), mapped=st.booleans())
def test_bytes_are_gathered_alike(of, mapped, tmp_path):
    contents, which, begin, head, _, _, row_bytes, crcs = of
    found = []
    for verbs in VERBS:
        status = np.full(len(which), 9, np.uint8)
        nbytes = np.full(len(which), len(head) + row_bytes, np.int64)
        with opened(tmp_path, contents, mapped) as files:
            said = outcome(verbs.gather_bytes, files, which, begin, nbytes, crcs, status)
        if not isinstance(said, str):
            said = [one for one, good in zip(said[0], status == RIGHT, strict=True) if good]
        found.append((said, status.tobytes()))
    assert all(one == found[0] for one in found)


@each
@mapped
def test_rows_come_from_their_files_verified(verbs, mapped, tmp_path):
    """Ten times: the first items of a call are read, the others copied where there are maps."""
    contents = [b"..headAAAA", b"headBBBB", b"hoadCCCCheadDDDX"]
    which, begin, rows = int64(0, 1, 2, 2, 1), int64(2, 0, 0, 8, 4), int64(3, 0, 1, 2, 4)
    crcs = crcs_of(b"headAAAA", b"headBBBB", b"hoadCCCC", b"headDDDD", b"BBBB")
    every = np.tile(np.arange(5), 10)
    memory, status = np.zeros((50, 4), np.uint8), np.full(50, 9, np.uint8)
    with opened(tmp_path, contents, mapped) as files:
        rows = rows[every] + np.repeat(np.arange(10), 5) * 5
        args = files, which[every], begin[every], b"head", rows, memory, 4, crcs[every], status
        assert verbs.gather_rows(*args) >= 0
    assert status.tolist() == [RIGHT, RIGHT, WRONG, WRONG, UNREAD] * 10
    for at in range(0, 50, 5):
        assert [bytes(memory[at + row]) for row in (3, 0)] == [b"AAAA", b"BBBB"]


@each
@mapped
def test_bytes_come_from_their_files_verified(verbs, mapped, tmp_path):
    contents = [b"abcdef", b"", b"x" * 300_000]
    which, begin, nbytes = (
        int64(0, 0, 2, 1, 0, 0, 2),
        int64(0, 2, 0, 0, 5, 6, 1),
        int64(2, 3, 3 * 10**5, 0, 2, 0, 5),
    )
    crcs = crcs_of(b"ab", b"xyz", b"x" * 300_000, b"", b"f", b"", b"xxxxx")
    status = np.full(7, 9, np.uint8)
    with opened(tmp_path, contents, mapped) as files:
        data, seconds = verbs.gather_bytes(files, which, begin, nbytes, crcs, status)
    assert seconds >= 0
    assert status.tolist() == [RIGHT, WRONG, RIGHT, RIGHT, UNREAD, RIGHT, RIGHT]
    assert [one for one, good in zip(data, status == RIGHT, strict=True) if good] == [
        b"ab",
        b"x" * 300_000,
        b"",
        b"",
        b"xxxxx",
    ]


@each
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"which": int64(1)}, "item 0: file 1 of 1"),
        ({"which": int64(-1)}, "item 0: file -1 of 1"),
        ({"rows": int64(2)}, "item 0: row 2 of 2"),
        ({"rows": int64(-1)}, "item 0: row -1 of 2"),
        ({"rows": int64(0, 0)}, "rows: 16 bytes, not 8"),
        ({"crcs": int64()}, "crcs: 0 bytes, not 8"),
        ({"status": np.zeros(2, np.uint8)}, "status: 2 bytes, not 1"),
        ({"memory": np.zeros(7, np.uint8)}, "memory: 7 bytes are no rows of 4"),
        ({"row_bytes": 0}, "memory: 8 bytes are no rows of 0"),
    ],
)
def test_arguments_that_cannot_be(verbs, change, says, tmp_path):
    """Nothing is read before everything was looked at."""
    with opened(tmp_path, [b"headvalue."]) as files:
        given = {
            "files": files,
            "which": int64(0),
            "begin": int64(0),
            "head": b"head",
            "rows": int64(0),
            "memory": np.full(8, 7, np.uint8),
            "row_bytes": 4,
            "crcs": int64(0),
            "status": np.zeros(1, np.uint8),
        } | change
        with pytest.raises(ValueError) as caught:
            verbs.gather_rows(*given.values())
    assert str(caught.value) == says
    assert set(given["memory"].tolist()) <= {0, 7}
    assert not given["status"].any()


@each
@mapped
@pytest.mark.parametrize("begin", [3, -1, 10, 11, 2**40, 2**63 - 1, -(2**63)])
def test_places_that_no_file_has(verbs, mapped, begin, tmp_path):
    memory, status = np.zeros(8 * 4, np.uint8), np.full(8, 9, np.uint8)
    zeros = np.zeros(8, np.int64)
    with opened(tmp_path, [b"headvalue."], mapped) as files:
        verbs.gather_rows(files, zeros, zeros + begin, b"head", np.arange(8), memory, 4, zeros, status)
    assert status.tolist() == [UNREAD] * 8


@each
def test_a_descriptor_that_is_none(verbs):
    status = np.full(1, 9, np.uint8)
    for descriptor in (-1, 10**6):
        verbs.gather_bytes([(descriptor, None)], int64(0), int64(0), int64(3), int64(0), status)
        assert status.tolist() == [UNREAD]


@each
def test_memory_that_may_not_be_written(verbs, tmp_path):
    memory = np.zeros(4, np.uint8)
    memory.flags.writeable = False
    with opened(tmp_path, [b"abcd"]) as files, pytest.raises((ValueError, BufferError)):
        verbs.gather_rows(
            files, int64(0), int64(0), b"", int64(0), memory, 4, int64(0), np.zeros(1, np.uint8)
        )


@each
def test_nothing_is_held_afterwards(verbs, tmp_path):
    """Neither maps, which could not be closed then, nor references."""
    memory, status = np.zeros(5, np.uint8), np.zeros(1, np.uint8)
    with opened(tmp_path, [b"headvalue."], mapped=True) as files:
        before = sys.getrefcount(files[0]), sys.getrefcount(files[0][1])
        verbs.gather_rows(files, int64(0), int64(0), b"head", int64(0), memory, 5, int64(0), status)
        verbs.gather_bytes(files, int64(0), int64(0), int64(5), int64(0), status)
        for verb, rest in (
            (verbs.gather_rows, (b"head", int64(0), memory, 5)),
            (verbs.gather_bytes, (int64(5),)),
        ):
            with pytest.raises(ValueError):
                verb(files, int64(7), int64(0), *rest, int64(0), status)
        assert (sys.getrefcount(files[0]), sys.getrefcount(files[0][1])) == before
        files[0][1].close()  # raises BufferError while a buffer is held


@each
@mapped
def test_items_that_are_not_in_the_page_cache(verbs, mapped, tmp_path):
    """They are read after the others, each into its own row."""
    content, n = np.random.default_rng(2).bytes(4 << 20), 200
    begin = np.random.default_rng(3).permutation(4000)[:n].astype(np.int64) * 1000
    memory, status = np.zeros((n, 1000), np.uint8), np.full(n, 9, np.uint8)
    with opened(tmp_path, [content], mapped) as files:
        os.sync()
        os.posix_fadvise(files[0][0], 0, 0, os.POSIX_FADV_DONTNEED)
        crcs = crcs_of(*(content[at : at + 1000] for at in begin.tolist()))
        rows = np.arange(n)[::-1].copy()
        verbs.gather_rows(files, np.zeros(n, np.int64), begin, b"", rows, memory, 1000, crcs, status)
    assert not status.any()
    assert all(memory[n - 1 - i].tobytes() == content[at : at + 1000] for i, at in enumerate(begin.tolist()))


CUT_SHORT = """
import mmap, os, sys
import numpy as np
from loader import native
if sys.argv[2] == "faulthandler":
    import faulthandler
    faulthandler.enable()
file = os.open(sys.argv[1], os.O_RDWR)
data = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
os.truncate(sys.argv[1], 4096)
n = 12
begin = np.arange(n) * 4096 % 40960
status, zeros, memory = np.full(n, 9, np.uint8), np.zeros(n, np.int64), np.zeros((n, 100), np.uint8)
for _ in range(3):
    native.gather_rows([(file, data)], zeros, begin, b"", np.arange(n), memory, 100, zeros, status)
    print(status.tolist())
if sys.argv[2] == "other":
    print(data[8192])
"""


@pytest.mark.parametrize("others", ["none", "faulthandler", "other"])
def test_a_map_of_a_file_that_was_cut_short(others, tmp_path):
    """It is an item that was not read, not the end of the process; a SIGBUS that others raise ends it as ever."""
    (tmp_path / "file").write_bytes(bytes(40_960))
    ran = subprocess.run(
        [sys.executable, "-c", CUT_SHORT, str(tmp_path / "file"), others], capture_output=True, text=True
    )
    ones = [WRONG, *[UNREAD] * 9, WRONG, UNREAD]  # (the checksum of zeros is not 0)
    assert ran.stdout.splitlines()[:3] == [str(ones)] * 3, ran.stderr
    assert ran.returncode == (-7 if others == "other" else 0)


@each
@mapped
def test_the_interpreter_is_free_meanwhile(verbs, mapped, tmp_path):
    """A thread counts while another gathers; with the lock held it could not before the end."""
    n = 1000
    zeros, memory, status = np.zeros(n, np.int64), np.zeros(1 << 20, np.uint8), np.zeros(n, np.uint8)
    crcs = np.full(n, google_crc32c.value(bytes(1 << 20)), np.int64)
    done, counted = threading.Event(), 0
    with opened(tmp_path, [bytes(1 << 20)], mapped) as files:

        def gather():
            verbs.gather_rows(files, zeros, zeros, b"", zeros, memory, 1 << 20, crcs, status)
            done.set()

        thread = threading.Thread(target=gather)
        thread.start()
        while not done.is_set():
            counted += 1
        thread.join()
    assert counted > 100
    assert not status.any()
