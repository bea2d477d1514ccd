"""The verbs that read and check sample bytes: the C extension does what Python says, byte for byte, error for error."""

import hashlib
import io
import mmap
import os
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import loader.native
from loader.errors import PenstockError
from loader.native import IN_MEMORY, RIGHT, UNKNOWN_CRC, UNREAD, WRONG, python
from loader.order.random.keyed_permutation import encode_field
from penstock.formats.archives import tar_headers

VERBS = [python]
if loader.native.KIND != "Python":
    from loader.native import _native

    VERBS.append(_native)
each = pytest.mark.parametrize("verbs", VERBS, ids=lambda verbs: verbs.__name__.rpartition(".")[2])
mapped = pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])


def int64(*numbers):
    return np.array(numbers, np.int64)


def message_crcs(*messages):
    return int64(*map(google_crc32c.value, messages))


@contextmanager
def open_files(folder, contents, mapped=False):
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
def test_check_value_of_crc_32c(verbs):
    """Of RFC 3720, appendix B.4."""
    assert verbs.crc32c(b"123456789") == 0xE3069283
    assert verbs.crc32c(bytes(32)) == 0x8A9136AA
    assert verbs.crc32c(bytes([255] * 32)) == 0x62A8AB43
    assert verbs.crc32c(b"") == 0


@each
def test_checksum_of_each_value(verbs):
    arrays = [np.arange(number, number + 6, dtype=np.float32).reshape(2, 3) for number in range(3)]
    expected = [google_crc32c.extend(7, array.tobytes()) for array in arrays]
    assert verbs.crc32c_each(arrays, 7, True) == expected
    texts = [b"a", bytes(70000), b""]
    assert verbs.crc32c_each(texts, 7, False) == [google_crc32c.extend(7, text) for text in texts]
    assert verbs.crc32c_each([], 7, True) == []


@each
@pytest.mark.parametrize(
    ("values", "alike"),
    [
        ([b"a", b"bc"], True),
        ([b"a", bytearray(b"b")], True),
        ([np.zeros(2), np.zeros(2, np.int64)], True),
        ([np.zeros((2, 3)), np.zeros((3, 2))], True),
        ([np.zeros(6)[::2]], False),
        ([np.zeros(2, "M8[s]")], False),
        ([b"a", 3], False),
    ],
)
def test_value_without_contiguous_or_alike_bytes_has_no_checksum(verbs, values, alike):
    counts = [sys.getrefcount(value) for value in values]
    assert verbs.crc32c_each(values, 0, alike) is None
    assert [sys.getrefcount(value) for value in values] == counts
    for value in values:
        if isinstance(value, bytearray):
            value.append(0)  # no buffer is held


@each
def test_checksums_of_any_length_at_any_place(verbs):
    """Lengths around a word, and around the lanes that are checked side by side."""
    data = np.random.default_rng(3).bytes(40_000)
    for nbytes in (*range(70), 255, 256, 767, 768, 769, 1536, 12_287, 12_288, 12_289, 13_057, 24_576, 39_990):
        for begin in (0, 1, 3, 8):
            part = memoryview(data)[begin : begin + nbytes]
            assert verbs.crc32c(part) == google_crc32c.value(bytes(part)), (begin, nbytes)


@pytest.mark.parametrize(
    "hasher",
    list(dict.fromkeys((python.PagedSha256, loader.native.PagedSha256))),
    ids=lambda one: one.__module__,
)
@given(blocks=st.integers(0, 60), page=st.integers(1, 20), cut=st.integers(0, 60), seed=st.integers(0, 9))
@settings(deadline=None)
def test_digests_of_bytes_and_of_their_pages(hasher, blocks, page, cut, seed):
    """In one piece or in two, the first of whole pages."""
    data, step = np.random.default_rng(seed).bytes(64 * blocks), 64 * page
    first = min(cut * step, len(data) // step * step)
    made = hasher(step)
    pages = made.update(memoryview(data)[:first]) + made.update(bytearray(data[first:]))
    expected = b"".join(hashlib.sha256(data[at : at + step]).digest() for at in range(0, len(data), step))
    assert (pages, made.digest()) == (expected, hashlib.sha256(data).digest())


@pytest.mark.parametrize(
    "hasher",
    list(dict.fromkeys((python.PagedSha256, loader.native.PagedSha256))),
    ids=lambda one: one.__module__,
)
def test_bytes_that_no_page_takes_are_refused(hasher):
    for page in (0, -64, 63, 100):
        with pytest.raises(ValueError, match=f"pages of {page} bytes"):
            hasher(page)
    made = hasher(128)
    with pytest.raises(ValueError, match="63 bytes behind 0"):
        made.update(bytes(63))
    made.update(bytes(192))
    with pytest.raises(ValueError, match="64 bytes behind 192"):
        made.update(bytes(64))
    assert made.digest() == hashlib.sha256(bytes(192)).digest()


class AtHand:
    """An archive in a file, or of which some bytes are held in memory, as a window has it."""

    def __init__(self, data, held):
        self.nbytes, self.found, self.sums = len(data), 0, True
        self._file = os.memfd_create("archive") if held is None else None
        self._at_hand = (
            ((self._file, None), 0) if held is None else ((IN_MEMORY, data[slice(*held)]), held[0])
        )
        if held is None:
            os.write(self._file, data)

    def at_hand(self):
        return self._at_hand

    def served(self, reads):
        self.found += reads

    def close(self):
        if self._file is not None:
            os.close(self._file)


def make_archive(members):
    """Members of (name, bytes, format, time), a name that ends with "/" a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, nbytes, format, mtime in members:
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size, info.mtime, archive.format = nbytes * info.isreg(), mtime, format
            archive.addfile(info, io.BytesIO(bytes([nbytes % 255 + 1]) * nbytes))
    return out.getvalue()


def with_checksums(found, data):
    """Members, whose checksums are those of their contents, or not known behind a large one."""
    for at, (offset, nbytes) in enumerate(zip(found.places[::2], found.places[1::2], strict=True)):
        known = at < len(found.crcs) - 1 and max(found.places[1 : 2 * at + 2 : 2]) < 16 * 2**10
        assert found.crcs[at] == google_crc32c.value(data[offset : offset + nbytes]) or (
            found.crcs[at] == UNKNOWN_CRC and not known
        )
    return found


def walk_archive(data, many=None):
    """The members of an archive, and the error behind them."""
    found = []
    try:
        found.extend(tar_headers.members(lambda at, n: data[at : at + n], len(data), "a.tar", many))
    except PenstockError as error:
        found.append(f"{type(error).__name__} {error}")
    return found


@each
@given(
    members=st.lists(
        st.tuples(
            st.sampled_from(
                ["a.jpg", "é/b.txt", "d/", "x" * 120, f"{'p' * 90}/{'q' * 50}.txt", "caf\udce9.txt"]
            ),
            st.sampled_from([0, 1, 511, 512, 513, 5_000, 40_000]),
            st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
            st.sampled_from([0, 1_700_000_000.25]),
        ).filter(lambda one: one[2] != tarfile.USTAR_FORMAT or one[0][0] != "x"),
        max_size=6,
    ),
    damage=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=2),
    cut=st.just(1.0) | st.floats(0, 1),
    held=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
@settings(deadline=None, max_examples=int(os.environ.get("NATIVE_EXAMPLES", "100")) // 10 + 40)
@example([("a.jpg", 3, tarfile.PAX_FORMAT, 1.5), ("b.jpg", 600, tarfile.GNU_FORMAT, 0)], [], 1.0, None)
@example([(f"{'p' * 90}/{'q' * 50}.txt", 1, tarfile.USTAR_FORMAT, 0)], [], 1.0, None)
@example([("a.jpg", 9, tarfile.USTAR_FORMAT, 0)], [(124.5 / 10_240, ord("8"))], 1.0, None)
@example([("a.jpg", 9, tarfile.USTAR_FORMAT, 0)], [(101.5 / 10_240, ord("7"))], 1.0, None)
def test_members_of_an_archive_are_those_that_its_headers_have(verbs, members, damage, cut, held):
    """One by one in Python, or all that are plain at once; of a file, or of the bytes held; whole, damaged or cut."""
    data = bytearray(make_archive(members))
    for where, byte in damage:
        data[int(where * (len(data) - 1))] = byte
    data = bytes(data[: int(cut * len(data))])
    window = AtHand(data, held and sorted(int(one * len(data)) for one in held))
    try:
        with patch.object(tar_headers, "tar_contents", verbs.tar_contents):
            mine = walk_archive(data, lambda at: with_checksums(tar_headers.plain_members(window, at), data))
    finally:
        window.close()
    assert mine == walk_archive(data)
    plain = (
        not damage and held is None and cut == 1.0 and all(name in ("a.jpg", "b.jpg") for name, *_ in members)
    )
    if verbs is not python and plain:
        assert window.found == len(members)


@each
@pytest.mark.parametrize("n", [0, 1, 2**16 - 1, 2**16, 3 * 10**6])
def test_copies_are_their_own(verbs, n):
    data = bytearray(np.arange(n, dtype=np.uint8).tobytes())
    before, made = bytes(data), verbs.copy_bytes(memoryview(data))
    data[:] = bytes(n)
    assert type(made) is bytes
    assert made == before


@each
def test_interpreter_is_free_while_large_bytes_are_copied(verbs):
    """This thread gets the lock if the other one gives it away: Python does not take it from it here."""
    data, done, before = memoryview(bytes(2**24)), threading.Event(), sys.getswitchinterval()

    def copy_many():
        for _ in range(40):
            verbs.copy_bytes(data)
        done.set()

    counted, thread = 0, threading.Thread(target=copy_many)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        while not done.is_set():
            counted += 1
            time.sleep(0)
    finally:
        sys.setswitchinterval(before)
    thread.join()
    assert (counted > 5) == (verbs is not python)


@each
@given(
    head=st.binary(max_size=200),
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    tail=st.binary(max_size=200),
)
@example(head=bytes(119), numbers=[0, -(2**63), 2**63 - 1], tail=b"")
def test_hashes_of_numbers_are_the_keys_of_the_order(verbs, head, numbers, tail):
    into = np.full(len(numbers), -1, np.int64).view(np.uint64)
    verbs.hash_numbers(head, int64(*numbers), tail, into)
    texts = [head + encode_field(number) + tail for number in numbers]
    digests = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
    assert into.tolist() == [int.from_bytes(digest, "little") for digest in digests]


@each
def test_hashes_of_numbers_need_room(verbs):
    with pytest.raises(ValueError, match="into: 8 bytes, not 16"):
        verbs.hash_numbers(b"", int64(1, 2), b"", np.zeros(1, np.uint64))


@each
@given(texts=st.lists(st.binary(max_size=300), max_size=6), before=st.binary(max_size=3))
@example(texts=[bytes(n) for n in (0, 1, 127, 128, 129, 255, 256, 257)], before=b"")
def test_hashes_of_texts_are_those_of_hashlib(verbs, texts, before):
    ends = np.cumsum([len(before), *map(len, texts)]).astype(np.int32)
    into = np.full(len(texts), -1, np.int64)
    verbs.hash_texts(ends, before + b"".join(texts), into)
    digests = [hashlib.blake2b(text, digest_size=16).digest()[:8] for text in texts]
    assert into.tolist() == [int.from_bytes(digest, "little") >> 1 for digest in digests]


@each
@pytest.mark.parametrize("ends", [[0, 4], [-1, 3], [2, 1], [0, 3, 3], []])
def test_texts_lie_in_their_data(verbs, ends):
    with pytest.raises(ValueError, match="ends: "):
        verbs.hash_texts(np.array(ends, np.int32), b"abc", np.zeros(1, np.int64))


@each
@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_checksum_goes_on_where_another_ended(verbs, data, cuts):
    crc = 0
    for begin, end in pairwise([0, *sorted(cuts), 2000]):
        crc = verbs.crc32c(data[begin:end], crc)
    assert crc == google_crc32c.value(data)


@st.composite
def gathers(draw):
    """(contents of files, which, begin, nbytes, head, at, room, checksums), perhaps wrong ones."""
    contents = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=3))
    head, n = draw(st.binary(max_size=3)), draw(st.integers(0, 12))
    places = st.tuples(st.integers(0, len(contents) - 1), st.integers(0, 60))
    items = draw(st.lists(places, min_size=n, max_size=n))
    if draw(st.booleans()):
        contents = [head + one[len(head) :] for one in contents]
        items = [(i, 0) if draw(st.booleans()) else (i, begin) for i, begin in items]
    sizes = [len(head) + size for size in draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))]
    flips = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 2**32]), min_size=n, max_size=n))
    messages = [contents[i][begin : begin + size] for (i, begin), size in zip(items, sizes, strict=True)]
    known = (
        -1 if flip == 2 else google_crc32c.value(one) ^ flip
        for one, flip in zip(messages, flips, strict=True)
    )
    crcs = int64(*known)
    which, begin, nbytes = int64(*(i for i, _ in items)), int64(*(b for _, b in items)), int64(*sizes)
    room = int(nbytes.sum()) - n * len(head) + draw(st.integers(0, 3))
    order = draw(st.permutations(range(n)))
    at = np.zeros(n, np.int64)
    at[order] = np.cumsum([0, *(sizes[i] - len(head) for i in order)])[:-1]
    if n and draw(st.integers(0, 3)) == 0:
        spoilt = draw(st.sampled_from([which, begin, nbytes, at]))
        spoilt[draw(st.integers(0, n - 1))] = draw(
            st.one_of(st.integers(-2, 60), st.sampled_from([2**62, -(2**62), 2**63 - 1]))
        )
    spans = sorted((a, a + n - len(head)) for a, n in zip(at.tolist(), nbytes.tolist(), strict=True))
    if all(0 <= first <= end <= room for first, end in spans):  # else they are refused
        assume(all(end <= first for (_, end), (first, _) in pairwise(spans)))  # not over each other
    return contents, which, begin, nbytes, head, at, room, crcs


alike = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=int(os.environ.get("NATIVE_EXAMPLES", settings().max_examples)),
)


@alike
@given(of=gathers(), mapped=st.booleans())
@example(
    of=([b"headvalue"], int64(0), int64(0), int64(9), b"head", int64(2), 8, message_crcs(b"headvalue")),
    mapped=True,
)
def test_both_do_the_same(of, mapped, tmp_path):
    contents, which, begin, nbytes, head, at, room, crcs = of
    found = []
    for verbs in VERBS:
        memory, status = np.full(room, 7, np.uint8), np.full(len(which), 9, np.uint8)
        found_crcs = crcs.copy()
        with open_files(tmp_path, contents, mapped) as files:
            try:
                verbs.gather(files, which, begin, nbytes, head, memory, at, found_crcs, status)
                said = None
            except ValueError as error:
                said = str(error)
        if said is None:  # the memory of items that are not right holds anything
            for i in np.flatnonzero(status != RIGHT).tolist():
                memory[at[i] : at[i] + nbytes[i] - len(head)] = 0
        found.append((said, memory.tobytes(), status.tobytes(), found_crcs.tobytes()))
    assert all(one == found[0] for one in found)


@each
@mapped
def test_checksum_that_is_not_known_is_told_and_not_compared(verbs, mapped, tmp_path):
    """Also of the first items of a call, which are read, and of the others, which are copied where there are maps."""
    contents, n = [b"headAAAAhoadBBBB"], 9
    every = np.tile(np.arange(2), n)
    crcs, status = np.full(2 * n, -1, np.int64), np.full(2 * n, 9, np.uint8)
    memory = np.zeros((2 * n, 4), np.uint8)
    with open_files(tmp_path, contents, mapped) as files:
        columns = np.zeros(2 * n, np.int64), every * 8, np.full(2 * n, 8)
        verbs.gather(files, *columns, b"head", memory, np.arange(2 * n) * 4, crcs, status)
    assert status.tolist() == [RIGHT, WRONG] * n  # of another head nothing is told
    assert crcs.tolist() == [google_crc32c.value(b"headAAAA"), -1] * n
    assert bytes(memory[0]) == b"AAAA"


@each
@mapped
def test_items_come_from_their_files_verified(verbs, mapped, tmp_path):
    """Ten times: the first items of a call are read, the others copied where there are maps."""
    contents = [b"..headAAAA", b"headBBBB", b"hoadCCCCheadDDDX"]
    which, begin, at = int64(0, 1, 2, 2, 1), int64(2, 0, 0, 8, 4), int64(12, 0, 4, 8, 16)
    crcs = message_crcs(b"headAAAA", b"headBBBB", b"hoadCCCC", b"headDDDD", b"BBBB")
    every = np.tile(np.arange(5), 10)
    memory, status = np.zeros((50, 4), np.uint8), np.full(50, 9, np.uint8)
    with open_files(tmp_path, contents, mapped) as files:
        at = at[every] + np.repeat(np.arange(10), 5) * 20
        args = files, which[every], begin[every], np.full(50, 8), b"head", memory, at, crcs[every], status
        assert verbs.gather(*args) >= 0
    assert status.tolist() == [RIGHT, RIGHT, WRONG, WRONG, UNREAD] * 10
    for row in range(0, 50, 5):
        assert [bytes(memory[row + own]) for own in (3, 0)] == [b"AAAA", b"BBBB"]


@each
@mapped
def test_items_of_any_size(verbs, mapped, tmp_path):
    contents = [b"abcdef", b"", b"x" * 300_000]
    which, begin = int64(0, 0, 2, 1, 0, 0, 2), int64(0, 2, 0, 0, 5, 6, 1)
    nbytes = int64(2, 3, 3 * 10**5, 0, 2, 0, 5)
    crcs = message_crcs(b"ab", b"xyz", b"x" * 300_000, b"", b"f", b"", b"xxxxx")
    memory, status, at = np.zeros(300_012, np.uint8), np.full(7, 9, np.uint8), np.cumsum(nbytes) - nbytes
    with open_files(tmp_path, contents, mapped) as files:
        verbs.gather(files, which, begin, nbytes, b"", memory, at, crcs, status)
    assert status.tolist() == [RIGHT, WRONG, RIGHT, RIGHT, UNREAD, RIGHT, RIGHT]
    right = np.flatnonzero(status == RIGHT).tolist()
    assert [memory[at[i] : at[i] + nbytes[i]].tobytes() for i in right] == [
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
        ({"at": int64(5)}, "item 0: 8 bytes, 4 of them head, to byte 5 of 8"),
        ({"at": int64(-1)}, "item 0: 8 bytes, 4 of them head, to byte -1 of 8"),
        ({"nbytes": int64(3)}, "item 0: 3 bytes, 4 of them head, to byte 0 of 8"),
        ({"nbytes": int64(13)}, "item 0: 13 bytes, 4 of them head, to byte 0 of 8"),
        ({"at": int64(0, 0)}, "at: 16 bytes, not 8"),
        ({"crcs": int64()}, "crcs: 0 bytes, not 8"),
        ({"status": np.zeros(2, np.uint8)}, "status: 2 bytes, not 1"),
    ],
)
def test_arguments_that_cannot_be(verbs, change, says, tmp_path):
    """Nothing is read before everything was looked at."""
    with open_files(tmp_path, [b"headvalue."]) as files:
        given = {
            "files": files,
            "which": int64(0),
            "begin": int64(0),
            "nbytes": int64(8),
            "head": b"head",
            "memory": np.full(8, 7, np.uint8),
            "at": int64(0),
            "crcs": int64(0),
            "status": np.zeros(1, np.uint8),
        } | change
        with pytest.raises(ValueError) as caught:
            verbs.gather(*given.values())
    assert str(caught.value) == says
    assert set(given["memory"].tolist()) == {7}
    assert not given["status"].any()


@each
@mapped
@pytest.mark.parametrize("begin", [3, -1, 10, 11, 2**40, 2**63 - 1, -(2**63)])
def test_places_that_no_file_has(verbs, mapped, begin, tmp_path):
    memory, status = np.zeros(8 * 4, np.uint8), np.full(8, 9, np.uint8)
    zeros = np.zeros(8, np.int64)
    with open_files(tmp_path, [b"headvalue."], mapped) as files:
        at = np.arange(8) * 4
        verbs.gather(files, zeros, zeros + begin, zeros + 8, b"head", memory, at, zeros, status)
    assert status.tolist() == [UNREAD] * 8


@each
@pytest.mark.parametrize("begin", [-1, 4, 2**62])
def test_empty_item_beyond_what_lies_in_memory(verbs, begin):
    """Its bytes cannot be wrong, and its place can."""
    status, none = np.full(2, 9, np.uint8), int64(0, 0)
    places, crcs = int64(3, begin), int64(0, UNKNOWN_CRC)
    files = [(IN_MEMORY, b"abc")]
    verbs.gather(files, none, places, none, b"", np.zeros(0, np.uint8), none, crcs, status)
    assert status.tolist() == [RIGHT, UNREAD]
    assert crcs.tolist() == [0, UNKNOWN_CRC]


@each
def test_descriptor_that_is_none(verbs):
    status, memory = np.full(1, 9, np.uint8), np.zeros(3, np.uint8)
    for descriptor in (-1, 10**6):
        files = [(descriptor, None)]
        verbs.gather(files, int64(0), int64(0), int64(3), b"", memory, int64(0), int64(0), status)
        assert status.tolist() == [UNREAD]


@each
def test_memory_that_may_not_be_written(verbs, tmp_path):
    memory = np.zeros(4, np.uint8)
    memory.flags.writeable = False
    status = np.zeros(1, np.uint8)
    with open_files(tmp_path, [b"abcd"]) as files, pytest.raises((ValueError, BufferError)):
        verbs.gather(files, int64(0), int64(0), int64(4), b"", memory, int64(0), int64(0), status)


@each
def test_nothing_is_held_afterwards(verbs, tmp_path):
    """Neither maps, which could not be closed then, nor references."""
    memory, status = np.zeros(5, np.uint8), np.zeros(1, np.uint8)
    with open_files(tmp_path, [b"headvalue."], mapped=True) as files:
        before = sys.getrefcount(files[0]), sys.getrefcount(files[0][1])
        rest = int64(0), int64(9), b"head", memory, int64(0), int64(0), status
        verbs.gather(files, int64(0), *rest)
        with pytest.raises(ValueError):
            verbs.gather(files, int64(7), *rest)
        assert (sys.getrefcount(files[0]), sys.getrefcount(files[0][1])) == before
        files[0][1].close()  # raises BufferError while a buffer is held


@each
@mapped
def test_items_that_are_not_in_the_page_cache(verbs, mapped, tmp_path):
    """They are read after the others, each into its own row."""
    content, n = np.random.default_rng(2).bytes(4 << 20), 200
    begin = np.random.default_rng(3).permutation(4000)[:n].astype(np.int64) * 1000
    memory, status = np.zeros((n, 1000), np.uint8), np.full(n, 9, np.uint8)
    with open_files(tmp_path, [content], mapped) as files:
        os.sync()
        os.posix_fadvise(files[0][0], 0, 0, os.POSIX_FADV_DONTNEED)
        crcs = message_crcs(*(content[at : at + 1000] for at in begin.tolist()))
        at, zeros = np.arange(n)[::-1] * 1000, np.zeros(n, np.int64)
        verbs.gather(files, zeros, begin, zeros + 1000, b"", memory, at, crcs, status)
    assert not status.any()
    assert all(memory[n - 1 - i].tobytes() == content[at : at + 1000] for i, at in enumerate(begin.tolist()))


@each
@mapped
@pytest.mark.parametrize("shift", [0, 1, 32], ids=lambda shift: f"{shift} behind a page")
def test_more_items_than_the_cache_of_a_processor_holds(verbs, mapped, shift, tmp_path):
    """Such copies go past the cache, to whole vectors of memory."""
    content, n, nbytes = np.random.default_rng(5).bytes(1 << 20), 700, 8000
    begin = np.random.default_rng(6).integers(0, (1 << 20) - nbytes, n)
    memory = np.frombuffer(mmap.mmap(-1, shift + n * nbytes), np.uint8)
    crcs = message_crcs(*(content[at : at + nbytes] for at in begin.tolist()))
    crcs[17] ^= 1
    status, zeros = np.full(n, 9, np.uint8), np.zeros(n, np.int64)
    with open_files(tmp_path, [content], mapped) as files:
        verbs.gather(
            files, zeros, begin, zeros + nbytes, b"", memory, shift + np.arange(n) * nbytes, crcs, status
        )
    assert np.flatnonzero(status).tolist() == [17]
    rows = memory[shift:].reshape(n, nbytes)
    assert all(
        row.tobytes() == content[at : at + nbytes] for row, at in zip(rows, begin.tolist(), strict=True)
    )


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
    at = np.arange(n) * 100
    native.gather([(file, data)], zeros, begin, zeros + 100, b"", memory, at, zeros, status)
    print(status.tolist())
if sys.argv[2] == "other":
    print(data[8192])
"""


@pytest.mark.parametrize("others", ["none", "faulthandler", "other"])
def test_map_of_a_file_that_was_cut_short(others, tmp_path):
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
def test_interpreter_is_free_meanwhile(verbs, mapped, tmp_path):
    """A thread counts while another gathers; with the lock held it could not before the end."""
    n = 300
    zeros, memory, status = np.zeros(n, np.int64), np.zeros(1 << 20, np.uint8), np.zeros(n, np.uint8)
    crcs = np.full(n, google_crc32c.value(bytes(1 << 20)), np.int64)
    done, counted = threading.Event(), 0
    with open_files(tmp_path, [bytes(1 << 20)], mapped) as files:

        def gather():
            verbs.gather(files, zeros, zeros, zeros + (1 << 20), b"", memory, zeros, crcs, status)
            done.set()

        thread = threading.Thread(target=gather)
        thread.start()
        while not done.is_set():
            counted += 1
        thread.join()
    assert counted > 100
    assert not status.any()
