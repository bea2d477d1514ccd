"""An MP4 whose tables promise more than the file holds is refused before FFmpeg builds an index of them."""

import io
import struct
import zlib
from pathlib import Path

import pytest

from loader.errors import DecodeFailed
from loader.modalities import find_decoder
from loader.modalities.container_parts import box
from loader.modalities.video.container_checks import check_file_tables, check_tables
from tests.refusals import ABSENT, refusal
from tests.servers.processes import python

MANY = 20_000_000
UNITY = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)


def table(name, *numbers, flags=0):
    return box(name, struct.pack(f">{1 + len(numbers)}I", flags, *numbers))


FTYP = box(b"ftyp", b"isom\0\0\2\0isomiso2mp41")
MDAT = box(b"mdat", bytes(8))
MVHD = (
    table(b"mvhd", 0, 0, 1000, 1000, 0x10000, 0x01000000, 0, 0)[:32]
    + bytes(8)
    + UNITY
    + bytes(24)
    + b"\0\0\0\2"
)
MVHD = struct.pack(">I", len(MVHD)) + MVHD[4:]


def track(tables, kind=b"vide", edits=b"", in_entry=b""):
    """A track with these boxes in its sample table. in_entry: boxes in the description of its samples."""
    head = (
        table(b"tkhd", 0, 0, 1, 0, 1000, flags=7)[8:]
        + bytes(16)
        + UNITY
        + struct.pack(">II", 64 << 16, 64 << 16)
    )
    entry = bytes(6) + b"\0\1" + bytes(16) + struct.pack(">HH", 64, 64) + bytes(12) + b"\0\1" + bytes(32)
    entry = box(b"mp4v", entry + struct.pack(">Hh", 24, -1) + in_entry)
    if kind == b"soun":
        entry = box(b"mp4a", bytes(6) + b"\0\1" + bytes(8) + struct.pack(">HHHHI", 2, 16, 0, 0, 44100 << 16))
    described = box(b"stsd", struct.pack(">II", 0, 1) + entry)
    source = box(b"dinf", box(b"dref", struct.pack(">II", 0, 1) + table(b"url ", flags=1)))
    handler = box(b"hdlr", bytes(8) + kind + bytes(13))
    inner = box(b"minf", source + box(b"stbl", described + b"".join(tables)))
    clock = table(b"mdhd", 0, 0, 1000, 1000, 0x55C40000)
    return box(b"trak", box(b"tkhd", head) + edits + box(b"mdia", clock + handler + inner))


def tables(n=2, size=1, n_sizes=None, sizes=()):
    return [
        table(b"stts", 1, n, 1),
        table(b"stsc", 1, 1, n, 1),
        table(b"stsz", size, n if n_sizes is None else n_sizes, *sizes),
        table(b"stco", 1, 0),
    ]


def film(*made, kind=b"vide", edits=b"", data=MDAT, in_entry=b""):
    return FTYP + box(b"moov", MVHD + track(made or tables(), kind, edits, in_entry)) + data


def fragment(n, flags=0, *entries):
    header = box(b"moov", MVHD + track(tables(0)) + box(b"mvex", table(b"trex", 1, 1, 1, 1, 0)))
    runs = table(b"tfhd", 1) + table(b"trun", n, *entries, flags=flags)
    return FTYP + header + box(b"moof", table(b"mfhd", 1) + box(b"traf", runs)) + MDAT


def edit_film(n, samples):
    edits = box(
        b"edts", box(b"elst", struct.pack(">II", 0, n) + struct.pack(">IiI", samples, 0, 0x10000) * n)
    )
    return film(*tables(samples), edits=edits, data=box(b"mdat", bytes(samples)))


def meta(boxes, before=bytes(4)):
    return box(b"meta", before + box(b"hdlr", bytes(8) + b"pict" + bytes(13)) + boxes)


def compress_header(header, told=None, method_nbytes=12):
    """A film whose header is compressed, as QuickTime wrote them. method_nbytes: size that its first box states."""
    size = len(header) if told is None else told
    method = struct.pack(">I4s4s", method_nbytes, b"dcom", b"zlib")
    return FTYP + box(b"moov", box(b"cmov", method, box(b"cmvd", size, zlib.compress(header, 9)))) + MDAT


FORGED = {
    "stsz": (lambda: film(*tables(MANY)), "samples", "stsz at byte", MANY, 575),
    "stsz of sizes": (
        lambda: film(*tables(MANY, 0)),
        "entries",
        "stsz at byte",
        MANY,
        0,
    ),
    "stz2": (lambda: film(table(b"stz2", 8, MANY)), "entries", "stz2 at byte", MANY, 0),
    "sound": (lambda: film(*tables(MANY), kind=b"soun"), "samples", "stsz at byte", MANY, 525),
    "stts": (lambda: film(table(b"stts", MANY, 1, 1)), "entries", "stts at byte", MANY, 1),
    "ctts": (lambda: film(table(b"ctts", MANY, 1, 1)), "entries", "ctts at byte", MANY, 1),
    "stsc": (lambda: film(table(b"stsc", MANY, 1, 1, 1)), "entries", "stsc at byte", MANY, 1),
    "stco": (lambda: film(table(b"stco", MANY, 1)), "entries", "stco at byte", MANY, 1),
    "co64": (lambda: film(table(b"co64", MANY, 1)), "entries", "co64 at byte", MANY, 0),
    "stss": (lambda: film(table(b"stss", MANY, 1)), "entries", "stss at byte", MANY, 1),
    "trun": (lambda: fragment(MANY), "samples", "trun at byte", MANY, 679),
    "trun of sizes": (lambda: fragment(MANY, 0x200, 1), "entries", "trun at byte", MANY, 1),
    "elst": (lambda: film(edits=box(b"edts", table(b"elst", MANY, 1))), "entries", "elst at byte", MANY, 0),
    "edits": (
        lambda: edit_film(3000, 2000),
        "index entries",
        "stsz at byte",
        6_000_000,
        1202940,
    ),
    "elsewhere": (
        lambda: film() + box(b"udta", table(b"stsz", 1, MANY)),
        "samples",
        "stsz at byte",
        MANY,
        603,
    ),
    "in an entry": (lambda: film(in_entry=table(b"stsz", 1, MANY)), "samples", "stsz at byte", MANY, 595),
    "in tref": (lambda: film(box(b"tref", table(b"stsz", 1, MANY))), "samples", "stsz at byte", MANY, 511),
    "iinf": (lambda: FTYP + meta(table(b"iinf", MANY, flags=1 << 24)), "entries", "iinf at byte", MANY, 0),
    "iloc": (
        lambda: FTYP + meta(box(b"iloc", b"\2\0\0\0\x44\0" + MANY.to_bytes(4, "big"))),
        "entries",
        "iloc at byte",
        MANY,
        0,
    ),
    "keys": (lambda: film() + box(b"moov", meta(table(b"keys", MANY))), "entries", "keys at byte", MANY, 0),
    "behind bytes": (
        lambda: FTYP + meta(table(b"iinf", MANY, flags=1 << 24), bytes(20)),
        "entries",
        "iinf at byte",
        MANY,
        0,
    ),
    "cmov": (
        lambda: compress_header(box(b"moov", MVHD + track(tables(MANY)))),
        "samples",
        "stsz at byte",
        MANY,
        ABSENT,
    ),
    "cmov told": (
        lambda: compress_header(MVHD, 2**31),
        "decompressed bytes",
        "cmov at byte",
        2147483648,
        67108864,
    ),
    "cmov of another size": (
        lambda: compress_header(box(b"moov", MVHD + track(tables(MANY))), method_nbytes=40),
        "samples",
        "stsz at byte",
        MANY,
        ABSENT,
    ),
    "cmov in cmov": (
        lambda: compress_header(compress_header(box(b"moov", MVHD))),
        "compressed header",
        "cmov at byte",
        "a second",
        "one",
    ),
    "cmov twice": (
        lambda: compress_header(MVHD) + compress_header(MVHD),
        "compressed header",
        "cmov at byte",
        "a second",
        "one",
    ),
    "nested": (lambda: FTYP + nest_boxes(30), "boxes", "moov at byte", 17, 16),
}


def nest_boxes(n):
    return box(b"moov", nest_boxes(n - 1)) if n else b""


@pytest.mark.parametrize("name", FORGED)
def test_forged_table_is_refused_by_every_reader(name):
    make, what, box, value, accepted = FORGED[name]
    data = make()
    for read in (
        check_tables,
        lambda data: check_file_tables(io.BytesIO(data)),
        find_decoder("mp4"),
        find_decoder("m4a"),
    ):
        with refusal(DecodeFailed, what=what, given=value, accepted=accepted, within=box):
            read(data)


def test_compressed_header_is_decompressed_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("loader.modalities.video.container_checks.MAX_MP4_HEADER_BYTES", 2**20)
    with refusal(
        DecodeFailed, what="decompressed bytes", where="mp4: cmov at byte 36", given=1048577, accepted=1048576
    ):
        check_tables(compress_header(bytes(2 * 2**20), told=8))


def test_tables_that_hold_what_they_say_are_accepted(videos):
    for data in (
        film(),
        fragment(3),
        fragment(2, 0x200, 4, 4),
        edit_film(2, 5),
        compress_header(box(b"moov", MVHD)),
        b"",
        b"RIFF",
    ):
        check_tables(data)
    for data, _ in videos.values():
        check_tables(data)
        file = io.BytesIO(data)
        check_file_tables(file)
        assert file.tell() == 0


@pytest.mark.parametrize("name", ["stsz", "trun", "edits"])
def test_forged_table_costs_little_memory(tmp_path, name):
    """20 million samples took 775 MiB, 3,000 edits 4.3 GiB: the child process stays below 64 MiB more."""
    (tmp_path / "forged.mp4").write_bytes(FORGED[name][0]())
    code = """
import sys
from loader.errors import DecodeFailed
from loader.modalities import find_decoder
decode, data = find_decoder("mp4"), open(sys.argv[1], "rb").read()
def tried(data):
    try:
        decode(data, None)
    except DecodeFailed:
        status = open("/proc/self/status").read()  # getrusage counts the parent's memory as well
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024
before = tried(b"")
print(tried(data) - before)
"""
    done = python("-c", code, tmp_path / "forged.mp4", check=True, cwd=Path(__file__).parents[3])
    assert int(done.stdout) < 64
