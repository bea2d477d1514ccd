"""Archives walked by their headers: each member where tarfile finds it, or an error that names object and byte."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import Corrupt, InvalidSample
from penstock.formats.archives import tar_headers
from penstock.formats.archives.tar_headers import members
from tests.penstock.formats.builders import tars
from tests.refusals import refusal

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tar_members(data, name="a.tar"):
    return list(members(lambda offset, nbytes: data[offset : offset + nbytes], len(data), name))


words = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=30)
names = st.lists(words, min_size=1, max_size=8).map("/".join).filter(lambda name: not name.endswith("/"))


@given(
    found=st.lists(st.tuples(names, st.binary(max_size=1200)), max_size=6),
    format=st.sampled_from(["gnu", "pax"]),
)
def test_members_lie_where_tarfile_finds_them(found, format):
    data = tars.tar_bytes(found, FORMATS[format])
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as archive:
        expected = [(one.name, one.offset_data, one.size) for one in archive if one.isreg()]
    mine = [(one.name, one.offset, one.nbytes) for one in tar_members(data)]
    assert [one[1:] for one in mine] == [one[1:] for one in expected]
    assert [name.rstrip("/") for name, _, _ in mine] == [name for name, _, _ in expected]
    assert [data[offset : offset + nbytes] for _, offset, nbytes in mine] == [one for _, one in found]


@given(cut=st.integers(1, 40), format=st.sampled_from(sorted(FORMATS)))
def test_archive_that_is_cut_is_an_error_wherever_it_is(cut, format):
    members = [("d/" * 60 + "a.txt", b"x" * 700), ("b.txt", b""), ("c.txt", b"y" * 5)]
    data = tars.tar_bytes(members, FORMATS[format])
    end = len(data.rstrip(b"\0")) // 512 * 512 + 1536  # behind the two blocks that end it
    with refusal(Corrupt, what="end", within="a.tar, byte "):
        tar_members(data[: end - 512 * cut // 8 - 1])


def special(kind, name="link.jpg"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "a.jpg"
    return info


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (
            tarfile.SYMTYPE,
            {
                "what": "link.jpg",
                "where": "a.tar, byte 1024",
                "given": "a symbolic link",
                "accepted": "regular files",
            },
        ),
        (
            tarfile.LNKTYPE,
            {
                "what": "link.jpg",
                "where": "a.tar, byte 1024",
                "given": "a hard link",
                "accepted": "regular files",
            },
        ),
        (
            tarfile.FIFOTYPE,
            {"what": "link.jpg", "where": "a.tar, byte 1024", "given": "a FIFO", "accepted": "regular files"},
        ),
        (
            tarfile.CHRTYPE,
            {
                "what": "link.jpg",
                "where": "a.tar, byte 1024",
                "given": "a character device",
                "accepted": "regular files",
            },
        ),
        (
            b"S",
            {
                "what": "link.jpg",
                "where": "a.tar, byte 1024",
                "given": "a sparse file",
                "accepted": "regular files",
            },
        ),
        (
            b"M",
            {
                "what": "link.jpg",
                "where": "a.tar, byte 1024",
                "given": "a part of a file that began in another volume",
                "accepted": "regular files",
            },
        ),
        (
            b"Q",
            {
                "what": "link.jpg",
                "where": "a.tar, byte 1024",
                "given": "of type b'Q'",
                "accepted": "regular files",
            },
        ),
    ],
)
def test_what_is_no_regular_file_is_named_with_its_byte(kind, fault):
    data = tars.tar_bytes([("a.jpg", b"1234"), special(kind)])
    with refusal(InvalidSample, **fault):
        tar_members(data)


def test_sparse_file_of_a_pax_header_is_named():
    info = tarfile.TarInfo("big.npy")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "big.npy"}
    with refusal(
        InvalidSample,
        what="big.npy",
        where="a.tar, byte 1024",
        given="a sparse file",
        accepted="regular files",
    ):
        tar_members(tars.tar_bytes([info], tarfile.PAX_FORMAT))


def test_folders_are_left_out_and_a_pax_size_counts():
    folder = tarfile.TarInfo("d")
    folder.type = tarfile.DIRTYPE
    data = bytearray(tars.tar_bytes([folder, ("d/a.txt", b"12345")], tarfile.PAX_FORMAT))
    assert [(one.name, one.offset, one.nbytes) for one in tar_members(bytes(data))] == [("d/a.txt", 1024, 5)]
    info = tarfile.TarInfo("a.txt")
    info.size, info.pax_headers = 3, {"size": "5"}
    out = io.BytesIO()
    out.write(info.tobuf(tarfile.PAX_FORMAT) + b"12345".ljust(512, b"\0") + bytes(1024))
    assert [one.nbytes for one in tar_members(out.getvalue())] == [5]


def test_names_that_are_no_utf8_and_binary_sizes_are_read():
    info = tarfile.TarInfo("caf\udce9.txt")
    data = tars.tar_bytes([info], tarfile.GNU_FORMAT)
    assert tar_members(data)[0].name == "caf\udce9.txt"
    large = tarfile.TarInfo("large.bin")
    large.size = 9 * 2**30
    header = large.tobuf(tarfile.GNU_FORMAT)
    with refusal(Corrupt, what="large.bin", where="a.tar, byte 0", given=0, accepted=9663676416):
        tar_members(header)


@pytest.mark.parametrize("byte", [0, 100, 130, 150, 156, 300])
def test_damaged_header_is_named(byte):
    data = bytearray(tars.tar_bytes([("a.txt", b"1"), ("b.txt", b"2")]))
    data[1024 + byte] ^= 0x15
    with refusal(Corrupt, what="header", where="a.tar, byte 1024", accepted="a tar header with its checksum"):
        tar_members(bytes(data))


def test_what_is_no_archive_and_what_goes_on_behind_its_end_is_named():
    with refusal(Corrupt, what="header", where="a.tar, byte 0", accepted="a tar header with its checksum"):
        tar_members(b"PK\x03\x04" + bytes(2000))
    one = tars.tar_bytes([("a.txt", b"1")])
    with refusal(
        Corrupt, what="end", where="a.tar, byte 1024", given=10240, accepted="no data after the end"
    ):
        tar_members(one + one)
    with refusal(Corrupt, what="end", where="a.tar, byte 0", given=0, accepted="two blocks of zeros"):
        tar_members(b"")
    damaged = bytearray(tars.tar_bytes([("x" * 200 + ".txt", b"1")], tarfile.PAX_FORMAT))
    damaged[512] = ord("9")
    with refusal(Corrupt, what="pax header", where="a.tar, byte 0"):
        tar_members(bytes(damaged))


def test_size_that_no_header_has_room_for_is_no_memory():
    info = tarfile.TarInfo("L")
    info.type, info.size = b"L", 2**33
    with refusal(Corrupt, what="extended header", where="a.tar, byte 0", given=8589934592, accepted=1048576):
        tar_members(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))


@given(content=st.binary(max_size=256) | st.just(b"\xff" * 256))
def test_bytes_of_half_a_header_are_summed(content):
    assert tar_headers._sum(content) == sum(content)
