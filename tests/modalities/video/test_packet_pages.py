"""Pages of a long packet table: each is a table of its own, found by the head, and all of them are the whole table."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import DecodeFailed
from loader.modalities.video.packet_pages import HEAD_BYTES, PacketPages, joined, read_head
from loader.modalities.video.packet_table import COLUMNS as ALL_COLUMNS
from loader.modalities.video.packet_table import (
    METADATA_CRC,
    PAGE_PACKETS,
    PacketTable,
    metadata_crc,
    packets_bytes,
    read_packets,
)
from loader.modalities.video.timeline import Timeline
from tests.modalities.video.test_packet_table import FACTS
from tests.refusals import refusal
from tests.servers.processes import python

COLUMNS = ("pts", "dts", "pos", "size", "key", "discard", "crc32c")


def long_table(n: int, gop: int, *, open_gops: bool = False, hidden: int = 0) -> PacketTable:
    """GOPs of I P B B P B B ...; in open ones two frames after a keyframe are shown before it."""
    order = []
    for first in range(0, n, gop):
        rest = list(range(first + 1, min(first + gop, n)))
        pairs = [one for at in range(0, len(rest), 2) for one in reversed(rest[at : at + 2])]
        order += [first, *pairs]
    pts = np.array(order, np.int64)
    key = pts % gop == 0
    if open_gops:
        starts = np.flatnonzero(key)[1:]
        for at in starts:
            pts[at], pts[at - 1] = pts[at - 1], pts[at]
    size = np.random.default_rng(n).integers(50, 900, n).astype(np.int32)
    discard = np.zeros(n, bool)
    discard[:hidden] = True
    ends = np.cumsum(size, dtype=np.int64)
    facts = replace(FACTS, nbytes=int(ends[-1]) + 10, end_pts=n, whole_because="")
    crcs = np.arange(n, dtype=np.uint32)
    return PacketTable(
        pts=pts,
        dts=np.arange(n),
        pos=ends - size,
        size=size,
        key=key,
        discard=discard,
        crc32c=crcs,
        facts=facts,
    )


def packet_pages(data: bytes) -> tuple[PacketPages, list]:
    head = read_head(data[:HEAD_BYTES])
    assert isinstance(head, PacketPages)
    assert head.nbytes == len(data)
    parts = [head.part(page) for page in range(len(head.starts) - 1)]
    return head, [head.page(page, data[at : at + nbytes]) for page, (at, nbytes, _) in enumerate(parts)]


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(PAGE_PACKETS + 1, 3 * PAGE_PACKETS),
    gop=st.sampled_from([1, 2, 12, 250, 5000]),
    hidden=st.sampled_from([0, 1, 3]),
)
def test_pages_are_the_whole_table(n: int, gop: int, hidden: int) -> None:
    table = long_table(n, gop, hidden=hidden)
    data = packets_bytes(table)
    whole = read_packets(data)
    head, pages = packet_pages(data)
    for name in COLUMNS:
        assert np.array_equal(getattr(whole, name), getattr(table, name))
        assert np.array_equal(
            np.concatenate([getattr(page.table, name) for page in pages]), getattr(table, name)
        )
    timeline = Timeline.of_table(table)
    assert len(head) == len(timeline)
    firsts = np.cumsum([0, *(len(page.table) for page in pages)])
    for page, first, start in zip(pages, firsts, head.starts.tolist(), strict=False):
        assert len(page.table) <= PAGE_PACKETS or gop > PAGE_PACKETS
        for frame in {0, len(page.timeline) // 2, len(page.timeline) - 1}:
            (own,), (same,) = page.timeline.runs([frame]), timeline.runs([start + frame])
            assert (own.first + first, own.stop + first) == (same.first, same.stop)
    ends = [pages[0], pages[-1]][: len(pages)]
    assert len(joined(ends).timeline) == sum(len(page.timeline) for page in ends)


def test_open_gops_have_one_page() -> None:
    """No cut is possible where frames after a keyframe need packets before it."""
    data = packets_bytes(long_table(2 * PAGE_PACKETS, 12, open_gops=True))
    head, _ = packet_pages(data)
    assert len(head.starts) == 2


def test_small_tables_and_whole_videos_have_no_pages() -> None:
    small = packets_bytes(long_table(PAGE_PACKETS, 12))
    assert read_head(small) is None
    table = long_table(PAGE_PACKETS + 1, 12)
    whole = replace(table, facts=replace(table.facts, whole_because="codec x was not tried"))
    assert read_head(packets_bytes(whole)) is None


def test_long_head_says_how_long_it_is() -> None:
    table = long_table(PAGE_PACKETS + 12, 12)
    data = packets_bytes(replace(table, facts=replace(table.facts, extradata=bytes(30_000))))
    needed = read_head(data[:HEAD_BYTES])
    assert isinstance(needed, int)
    assert isinstance(read_head(data[:needed]), PacketPages)


def test_damaged_head_is_none_and_another_page_is_refused() -> None:
    data = packets_bytes(long_table(3 * PAGE_PACKETS, 12))
    head, _ = packet_pages(data)
    refused = 0
    for at in range(4, data.index(b"last_pts") + 40):  # all of the metadata, and flatbuffers' padding
        damaged = bytearray(data[:HEAD_BYTES])
        damaged[at] ^= 1
        read = read_head(bytes(damaged))
        if isinstance(read, PacketPages):
            assert (read.facts, read.starts.tolist()) == (head.facts, head.starts.tolist())
            assert read.pts.tolist() == head.pts.tolist()
        refused += read is None
    assert refused > 500
    (at, nbytes, _), (other, more, _) = head.part(0), head.part(1)
    with refusal(DecodeFailed, what="packet table", where="page 0", given="another head"):
        head.page(0, data[other : other + more])
    with refusal(DecodeFailed, what="packet table", where="page 0", given="OSError"):
        head.page(0, data[at : at + nbytes - 64])


@pytest.mark.parametrize(
    "forged",
    [
        {"end_pts": str(10**30)},
        {"time_base": "1/00"},
        {"time_base": "-1/30"},
        {"time_base": "1/99999999999"},
        {"width_px": "-1"},
        {"last_pts": str(2**63 - 1)},
    ],
)
def test_forged_head_is_none(forged: dict[str, str]) -> None:
    data = packets_bytes(long_table(2 * PAGE_PACKETS, 12))
    schema = pa.ipc.read_schema(pa.py_buffer(data[:HEAD_BYTES]))
    metadata = {**schema.metadata, **{name.encode(): value.encode() for name, value in forged.items()}}
    metadata[METADATA_CRC.encode()] = metadata_crc(metadata)
    head = schema.with_metadata(metadata).serialize().to_pybytes()
    assert read_head(head) is None
    if "last_pts" not in forged:
        with pytest.raises(DecodeFailed):
            read_packets(head + data[8 + int.from_bytes(data[4:8], "little") :])


def test_pages_that_do_not_ascend_in_the_video_are_refused() -> None:
    _, pages = packet_pages(packets_bytes(long_table(2 * PAGE_PACKETS, 12)))
    with refusal(DecodeFailed, what="packet table", given="places that do not ascend"):
        joined([pages[0], pages[0]])


def test_compressed_pages_are_refused_before_they_take_memory() -> None:
    n = 200_000
    columns = [pa.array(np.zeros(n, kind.type.to_pandas_dtype())) for kind in ALL_COLUMNS]
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="zstd")
    data = packets_bytes(long_table(PAGE_PACKETS + 12, 12))
    schema = pa.ipc.read_schema(pa.py_buffer(data[:HEAD_BYTES]))
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    forged = sink.getvalue().to_pybytes()
    assert len(forged) < n // 10
    head, _ = packet_pages(data)
    with refusal(DecodeFailed, what="packet table", where="page 0", given="a compressed batch"):
        head.page(0, forged[8 + int.from_bytes(forged[4:8], "little") :])
    with refusal(DecodeFailed, what="packet table", given="a compressed batch"):
        read_packets(forged)


FUZZ = """
import sys
import numpy as np
from loader.errors import DecodeFailed
from loader.modalities.video.packet_pages import PacketPages, read_head

good, rng, read = open(sys.argv[1], "rb").read(), np.random.default_rng(7), 0
at, nbytes, _ = read_head(good[:16384]).part(0)
for _ in range(1500):
    data = bytearray(good)
    begin, end = (0, 4000) if rng.random() < 0.5 else (at, at + 1200)
    for place in rng.integers(begin, end, rng.integers(1, 5)):
        data[place] = rng.integers(256)
    head = read_head(bytes(data[: rng.integers(8, 16384)]))
    try:
        if isinstance(head, PacketPages):
            head.page(0, bytes(data[at : at + nbytes]))
            read += 1
    except DecodeFailed:
        pass
print(read)
"""


def test_damaged_pages_never_crash(tmp_path) -> None:
    (tmp_path / "table").write_bytes(packets_bytes(long_table(PAGE_PACKETS + 100, 12)))
    run = python("-c", FUZZ, tmp_path / "table")
    assert run.returncode == 0, run.stderr[-2000:]
