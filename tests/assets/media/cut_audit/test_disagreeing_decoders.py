"""Pictures that two decoders read as two: refused by that name, or taken where the format says who is right."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assets.media.cut_audit.image import audit_photo
from assets.media.image import cut as image
from assets.media.policy import CutPolicy
from assets.media.unit import Unusable

WIDTH, HEIGHT = 81, 67
RNG = np.random.default_rng(0)
RGB = np.kron(RNG.integers(0, 256, (9, 9, 3), np.uint8), np.ones((8, 9, 1), np.uint8))[:HEIGHT, :WIDTH]
INDICES = np.kron(RNG.integers(0, 15, (9, 9), np.uint8), np.ones((8, 9), np.uint8))[:HEIGHT, :WIDTH]
PALETTE = RNG.integers(0, 256, (256, 4), np.uint8)


def bmp(body: bytes, *, compression: int, colours: int, bits: int = 8) -> bytes:
    palette = PALETTE[:colours] * np.array([1, 1, 1, 0], np.uint8)
    start = 54 + 4 * colours
    head = b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start)
    head += struct.pack(
        "<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, bits, compression, len(body), 2835, 2835, colours, 0
    )
    return head + palette.tobytes() + body


def odd_runs() -> bytes:
    """RLE8, runs and stretches of every length, odd ones too."""
    out = bytearray()
    for row in INDICES[::-1]:
        out += bytes([0, 5, *row[:5], 0])
        for value in row[5:]:
            out += bytes([1, value])
        out += b"\0\0"
    return bmp(bytes(out) + b"\0\1", compression=1, colours=256)


def runs_too_long() -> bytes:
    """Each row is one run, of more pixels than it has."""
    rows = b"".join(bytes([200, value]) + b"\0\0" for value in np.repeat(np.arange(10, 18), 9)[:HEIGHT])
    return bmp(rows + b"\0\1", compression=1, colours=256)


def invalid_indices() -> bytes:
    """Indices that the palette has no colour for."""
    pixels = INDICES.copy()
    pixels[20:50] = 200
    pad = b"\0" * (-WIDTH % 4)
    return bmp(b"".join(bytes(row) + pad for row in pixels[::-1]), compression=0, colours=16)


def tiff(data: bytes, compression: int, predictor: int) -> bytes:
    tags = {256: WIDTH, 257: HEIGHT, 259: compression, 262: 2, 277: 3, 278: HEIGHT, 284: 1, 317: predictor}
    n = len(tags) + 3
    bits = 8 + 2 + 12 * n + 4
    entries = {tag: (3, 1, struct.pack("<HH", value, 0)) for tag, value in tags.items()}
    entries[258] = (3, 3, struct.pack("<I", bits))
    entries[273], entries[279] = (4, 1, struct.pack("<I", bits + 6)), (4, 1, struct.pack("<I", len(data)))
    body = b"".join(struct.pack("<HHI", tag, *one[:2]) + one[2] for tag, one in sorted(entries.items()))
    return b"II*\0" + struct.pack("<IH", 8, n) + body + bytes(4) + struct.pack("<HHH", 8, 8, 8) + data


def filtered_scanlines() -> bytes:
    before = np.zeros_like(RGB)
    before[:, 1:] = RGB[:, :-1]
    return tiff(zlib.compress((RGB - before).tobytes()), 8, 2)


def idle_predictor() -> bytes:
    return tiff(RGB.tobytes(), 1, 2)


def deep_png() -> bytes:
    """16 bits, the lower ones noise."""
    deep = (RGB.astype(np.uint16) * 256 + RNG.integers(0, 256, RGB.shape, np.uint16)).astype(">u2")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in _chunks(deep)
    )


def _chunks(deep: np.ndarray) -> Iterator[tuple[bytes, bytes]]:
    yield b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    yield b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in deep))
    yield b"IEND", b""


def cut(data: bytes, folder: Path) -> None:
    path = folder / "raw"
    path.write_bytes(data)
    (unit,) = image.cut_image(str(path), folder, CutPolicy())
    audit_photo(str(path), unit)


@pytest.mark.parametrize("make", [odd_runs, filtered_scanlines, idle_predictor, deep_png])
def test_taken(make, tmp_path: Path) -> None:
    cut(make(), tmp_path)


@pytest.mark.parametrize("make", [runs_too_long, invalid_indices])
def test_refused_by_that_name(make, tmp_path: Path) -> None:
    with pytest.raises(Unusable) as caught:
        cut(make(), tmp_path)
    assert caught.value.code == "decoders_disagree"
    assert "Pillow and FFmpeg read it" in caught.value.reason


def test_mistake_of_the_cut_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the decoders agree, the cut is wrong."""
    monkeypatch.setattr(image, "upright", lambda picture, pending: picture.rotate(180))
    with pytest.raises(Unusable) as caught:
        cut(filtered_scanlines(), tmp_path)
    assert caught.value.code == "rotation_ignored"
