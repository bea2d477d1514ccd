"""The packet table `<field>.packets`: its bytes are a contract, what it says is what a demuxer says."""

import io
import subprocess
import sys
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import DecodeFailed, FormatTooNew
from loader.modalities.video.packet_table import (
    NO_TIME,
    PacketTable,
    StreamFacts,
    index_packets,
    packets_bytes,
    read_packets,
)
from tests.refusals import refusal
from tests.servers.processes import python

GOLDEN = Path(__file__).parent.parent / "golden" / "packets-1.arrows"

FACTS = StreamFacts(
    codec="h264",
    codec_tag="avc1",
    extradata=bytes(range(40)),
    time_base=Fraction(1001, 30000),
    width_px=640,
    height_px=360,
    pix_fmt="yuv420p",
    color_range=1,
    color_primaries=1,
    color_trc=1,
    colorspace=6,
    sar=Fraction(4, 3),
    display_matrix=(0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30),
    reorder_frames=2,
    end_pts=6,
    nbytes=2000,
    crc32c=0xDEADBEEF,
    whole_because="",
)


def make_table(n=6, facts=FACTS, **columns):
    made = {
        "pts": np.array([0, 3, 1, 2, 5, 4][:n], np.int64),
        "dts": np.array([NO_TIME, -1, 0, 1, 2, 3][:n], np.int64),
        "pos": np.array([48, 300, 400, 450, 900, 1001][:n], np.int64),
        "size": np.array([252, 90, 50, 400, 101, 999][:n], np.int32),
        "key": np.array([True, False, False, False, True, False][:n]),
        "discard": np.array([True, False, False, False, False, False][:n]),
        "crc32c": np.array([0, 1, 2**32 - 1, 7, 8, 9][:n], np.uint32),
    }
    return PacketTable(**{**made, **columns}, facts=facts)


def same(a, b):
    return a.facts == b.facts and all(
        np.array_equal(getattr(a, f.name), getattr(b, f.name))
        and getattr(a, f.name).dtype == getattr(b, f.name).dtype
        for f in fields(a)
        if f.name != "facts"
    )


def test_bytes_are_the_golden_file():
    """A change leaves them alone, or raises `packets.TABLE_VERSION` and adds a file; this one stays readable."""
    assert packets_bytes(make_table()) == GOLDEN.read_bytes()
    assert same(read_packets(GOLDEN.read_bytes()), make_table())


def test_any_arrow_reader_reads_it():
    with pa.ipc.open_stream(GOLDEN.read_bytes()) as reader:
        (batch,) = list(reader)
        metadata = {name.decode(): value.decode() for name, value in reader.schema.metadata.items()}
    assert batch.to_pylist()[3] == {
        "pts": 2,
        "dts": 1,
        "pos": 450,
        "size": 400,
        "key": False,
        "discard": False,
        "crc32c": 7,
    }
    assert (metadata["penstock.table"], metadata["penstock.schema"]) == ("packets", "1")
    assert (metadata["time_base"], metadata["sar"], metadata["codec"]) == ("1001/30000", "4/3", "h264")


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.data())
def test_what_is_written_is_read(data):
    n = data.draw(st.integers(1, 40))
    sizes = np.array(data.draw(st.lists(st.integers(1, 1000), min_size=n, max_size=n)), np.int32)
    gaps = np.array(data.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)), np.int64)
    pos = np.cumsum(gaps) + np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64)
    ticks = st.integers(-(2**40), 2**40)
    pts = np.array(data.draw(st.lists(ticks, min_size=n, max_size=n, unique=True)), np.int64)
    marks = st.lists(st.booleans(), min_size=n, max_size=n)
    table = PacketTable(
        pts=pts,
        dts=np.sort(pts),
        pos=pos,
        size=sizes,
        key=np.array(data.draw(marks)),
        discard=np.array(data.draw(marks)),
        crc32c=np.array(data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n)), np.uint32),
        facts=replace(
            FACTS,
            extradata=data.draw(st.binary(max_size=60)),
            nbytes=int(pos[-1]) + int(sizes[-1]),
            display_matrix=(),
            whole_because=data.draw(st.text(max_size=20)),
        ),
    )
    written = packets_bytes(table)
    assert same(read_packets(written), table)
    assert packets_bytes(read_packets(written)) == written


def test_it_says_what_a_demuxer_says(videos):
    for name, (data, _) in videos.items():
        written = index_packets(data)
        assert written == index_packets(memoryview(data)), name
        table = read_packets(written)
        assert table.facts.whole_because == "", name
        with av.open(io.BytesIO(data)) as container:
            stream = container.streams.video[0]
            packets = [packet for packet in container.demux(stream) if packet.size]
            assert (table.facts.width_px, table.facts.height_px) == (stream.width, stream.height)
            assert table.facts.time_base == stream.time_base
        assert table.pts.tolist() == [packet.pts for packet in packets]
        assert table.dts.tolist() == [packet.dts for packet in packets]
        assert table.key.tolist() == [packet.is_keyframe for packet in packets]
        assert table.discard.tolist() == [packet.is_discard for packet in packets]
        for pos, size, crc, packet in zip(table.pos, table.size, table.crc32c, packets, strict=True):
            assert data[pos : pos + size] == bytes(packet)
            assert crc == crc32c(bytes(packet))
        assert (table.facts.nbytes, table.facts.crc32c) == (len(data), crc32c(data))
        *_, before, last = sorted(packets, key=lambda packet: packet.pts)
        assert table.facts.end_pts == last.pts + max(last.duration, last.pts - before.pts)


def test_equal_bytes_give_equal_tables_in_another_process(videos, tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(videos["hevc"][0])
    code = (
        "import sys; from loader.modalities.video.packet_table import index_packets; "
        "sys.stdout.buffer.write(index_packets(open(sys.argv[1], 'rb').read()))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert run.stdout == index_packets(videos["hevc"][0])


def test_file_of_an_encoder_that_was_tried_has_the_same_table(videos):
    """Where a decoder is told something else than of the file that was tried, pictures are compared after all."""
    for data, _ in videos.values():
        facts = read_packets(index_packets(data)).facts
        for name, (other, _) in videos.items():
            assert index_packets(other, facts) == index_packets(other), name
    whole = matroska(data)
    assert index_packets(whole, facts) == index_packets(whole)


def matroska(data):
    """The packets of an mp4 in a Matroska file, whose places are not those of the payloads."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="matroska") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return file.getvalue()


def test_what_cannot_be_read_by_packets_has_a_table_that_says_so(videos):
    data = matroska(videos["gop12"][0])
    table = read_packets(index_packets(data))
    assert "does not lie in the file as the decoder gets it" in table.facts.whole_because
    assert len(table) == 60


def test_what_cannot_be_read_has_no_table(videos):
    data = videos["gop12"][0]
    header = data[: data.index(b"mdat")]
    faults = {
        b"": "InvalidDataError",
        b"\0" * 100: "InvalidDataError",
        data[:-1]: len(data) - 1,
        header: len(header),
    }
    for broken, fault in faults.items():
        with refusal(DecodeFailed, what="video", given=fault):
            index_packets(broken)


OUTSIDE = "a place outside of its field"
LATE = "a time out of range"
WRONG = [
    ("a size below 1", {"size": np.array([252, 90, 0, 400, 101, 999], np.int32)}),
    (OUTSIDE, {"pos": np.array([48, 300, 400, 450, 900, 1002], np.int64)}),
    (OUTSIDE, {"pos": np.array([48, 300, 400, 450, 900, 2**63 - 1], np.int64)}),
    (LATE, {"pts": np.array([0, 3, 1, 2, 5, -(2**63)], np.int64)}),
    ("places that do not ascend", {"pos": np.array([48, 300, 389, 450, 900, 1001], np.int64)}),
    (LATE, {"pts": np.array([0, 3, 1, 2, 5, 2**63 - 1], np.int64)}),
]


@pytest.mark.parametrize(("fault", "columns"), WRONG)
def test_arrays_out_of_range_are_refused(fault, columns):
    with refusal(DecodeFailed, what="packet table", given=fault):
        read_packets(packets_bytes(make_table(**columns)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"time_base": Fraction(0)},
        {"time_base": Fraction(-1, 25)},
        {"width_px": 0},
        {"height_px": 2**17},
        {"nbytes": 0},
        {"nbytes": 1999},
        {"display_matrix": (1, 2)},
        {"end_pts": 2**63},
        {"reorder_frames": -1},
    ],
)
def test_facts_out_of_range_are_refused(wrong):
    with refusal(DecodeFailed, what="packet table"):
        read_packets(packets_bytes(make_table(facts=replace(FACTS, **wrong))))


def rewritten(change, golden=None):
    with pa.ipc.open_stream(golden or GOLDEN.read_bytes()) as reader:
        table = change(reader.read_all())
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.slice(0, 0),
        lambda table: table.drop_columns(["crc32c"]),
        lambda table: table.append_column("more", pa.array(range(6))),
        lambda table: table.set_column(0, "pts", pa.array(range(6), pa.int32())),
        lambda table: table.set_column(0, pa.field("pts", pa.int64()), pa.array([None, 1, 2, 3, 4, 5])),
        lambda table: table.replace_schema_metadata({}),
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"extradata": b"!"}),
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"time_base": b"1/0"}),
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"nbytes": b"many"}),
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"penstock.table": b"index"}),
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"codec": b"\xff\xfe"}),
    ],
)
def test_another_table_is_refused(change):
    with refusal(DecodeFailed, what="packet table"):
        read_packets(rewritten(change))


def test_newer_table_is_refused_by_its_number():
    newer = rewritten(
        lambda table: table.replace_schema_metadata({**table.schema.metadata, b"penstock.schema": b"3"})
    )
    with refusal(FormatTooNew, what="schema", given="3", accepted=2):
        read_packets(newer)


FUZZ = """
import sys
import numpy as np
from loader.errors import DecodeFailed, FormatTooNew
from loader.modalities.video.packet_table import read_packets

good, rng, read = open(sys.argv[1], "rb").read(), np.random.default_rng(int(sys.argv[2])), 0
for _ in range(int(sys.argv[3])):
    data = bytearray(good)
    for place in rng.integers(0, len(data), rng.integers(1, 5)):
        data[place] = rng.integers(256)
    cut = data if rng.random() < 0.7 else data[: rng.integers(len(data))]
    try:
        read_packets(bytes(cut))
        read += 1
    except (DecodeFailed, FormatTooNew):
        pass
print(read)
"""


def test_damaged_bytes_are_refused_or_read_and_never_crash():
    """In a process of its own: a crash of the reader would be one of the tests otherwise."""
    run = python("-c", FUZZ, GOLDEN, "3", "3000")
    assert run.returncode == 0, run.stderr[-2000:]
