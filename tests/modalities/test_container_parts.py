"""Boxes of an MP4 and chunks of a RIFF file: where each begins, and which heads end the walk."""

import struct

import pytest

from loader.modalities.container_parts import box, boxes, chunks, long_sizes, memory_reader, riff_chunk


def test_boxes_follow_each_other_with_short_long_and_open_sizes() -> None:
    long = struct.pack(">I4sQ", 1, b"mdat", 18) + b"ab"
    data = box(b"ftyp", b"isom") + long + struct.pack(">I4s", 0, b"free") + b"cd"
    assert list(boxes(memory_reader(data), 0, len(data))) == [
        (b"ftyp", 0, 8, 12),
        (b"mdat", 12, 28, 30),
        (b"free", 30, 38, 40),
    ]


@pytest.mark.parametrize(
    "rest", [b"\0\0\0", struct.pack(">I4s", 7, b"moov"), struct.pack(">I4s", 1, b"moov"), b""]
)
def test_boxes_end_at_a_head_that_is_cut_or_states_less_than_itself(rest: bytes) -> None:
    data = box(b"ftyp", b"isom") + rest
    assert [kind for kind, *_ in boxes(memory_reader(data), 0, len(data))] == [b"ftyp"]


def test_box_that_is_cut_has_the_end_that_it_states() -> None:
    data = box(b"moov", bytes(100))[:50]
    assert list(boxes(memory_reader(data), 0, len(data))) == [(b"moov", 0, 8, 108)]


def test_box_inside_another_ends_with_it() -> None:
    inner = struct.pack(">I4s", 0, b"trak")
    data = box(b"moov", inner) + box(b"mdat", b"")
    assert list(boxes(memory_reader(data), 8, 16)) == [(b"trak", 8, 16, 16)]


def test_chunks_are_padded_to_an_even_size() -> None:
    data = b"RIFF....WAVE" + struct.pack("<4sI", b"odd ", 3) + b"abc\0" + struct.pack("<4sI", b"data", 9)
    assert list(chunks(data, 12, "<4sI")) == [(b"odd ", 20, 23), (b"data", 32, 41)]


def test_chunk_of_a_negative_size_is_the_last() -> None:
    data = struct.pack(">4sq", b"desc", 1) + b"a" + struct.pack(">4sq", b"data", -1) + bytes(40)
    assert list(chunks(data, 0, ">4sq")) == [(b"desc", 12, 13), (b"data", 25, 25)]


def test_written_box_states_its_size_and_holds_ints_of_four_bytes() -> None:
    assert box(b"stts") == b"\0\0\0\x08stts"
    assert box(b"stts", 1, b"ab", 2**32 - 1) == b"\0\0\0\x12stts\0\0\0\1ab\xff\xff\xff\xff"


def test_written_riff_chunk_states_its_size_without_padding() -> None:
    assert riff_chunk(b"fact", b"abc") == b"fact\3\0\0\0abc"


def test_long_sizes_are_those_of_a_first_chunk_ds64() -> None:
    sizes = riff_chunk(b"ds64", struct.pack("<QQQ", 2**33, 2**32, 7))
    head = b"RF64\xff\xff\xff\xffWAVE"
    assert long_sizes(head + sizes) == (2**33, 2**32)
    assert long_sizes((head + sizes)[:35]) is None
    assert long_sizes(head + riff_chunk(b"fmt ", bytes(16)) + sizes) is None
