"""Files that are small and want much: pixels, text, scans, frames. Refused early, or decoded in bounded memory."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assets.media.audit import audit_image
from assets.media.unit import Unusable
from loader.limits import MAX_RAW_IMAGE_PX
from loader.modalities.container_parts import riff_chunk
from tests.servers.processes import python


def encode_picture(picture: Image.Image, kind: str, **options: object) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, kind, **options)
    return sink.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


SMALL = Image.new("RGB", (16, 16), (10, 200, 30))
SIDE = 12_000  # 144 million pixels, less than what Pillow itself refuses


def huge_jpeg() -> bytes:
    data = bytearray(encode_picture(SMALL, "JPEG"))
    frame = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, frame + 5, SIDE, SIDE)
    return bytes(data)


def huge_png() -> bytes:
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(99)))
        + chunk(b"IEND", b"")
    )


def huge_gif() -> bytes:
    data = bytearray(encode_picture(SMALL, "GIF"))
    struct.pack_into("<HH", data, 6, SIDE, SIDE)
    return bytes(data)


def huge_webp() -> bytes:
    """An extended WebP whose canvas is large."""
    inner = encode_picture(SMALL, "WEBP", lossless=True)[12:]
    edge = (SIDE - 1).to_bytes(3, "little")
    return riff_chunk(b"RIFF", b"WEBP" + riff_chunk(b"VP8X", bytes(4) + edge + edge) + inner)


def huge_bmp() -> bytes:
    data = bytearray(encode_picture(SMALL, "BMP"))
    struct.pack_into("<ii", data, 18, SIDE, SIDE)
    return bytes(data)


def huge_tiff() -> bytes:
    return (
        encode_picture(SMALL, "TIFF", compression="tiff_deflate")
        .replace(struct.pack("<HHIHH", 256, 3, 1, 16, 0), struct.pack("<HHII", 256, 4, 1, SIDE))
        .replace(struct.pack("<HHIHH", 257, 3, 1, 16, 0), struct.pack("<HHII", 257, 4, 1, SIDE))
    )


def huge_avif() -> bytes:
    data = bytearray(encode_picture(SMALL, "AVIF"))
    struct.pack_into(">II", data, data.index(b"ispe") + 8, SIDE, SIDE)
    return bytes(data)


HUGE: list[Callable[[], bytes]] = [huge_jpeg, huge_png, huge_gif, huge_webp, huge_bmp, huge_tiff, huge_avif]


@pytest.mark.parametrize("make", HUGE)
def test_bomb_of_pixels_is_refused_by_its_header(tmp_path: Path, make: Callable[[], bytes]) -> None:
    path = tmp_path / "raw"
    data = make()
    assert len(data) < 10_000
    path.write_bytes(data)
    with pytest.raises(Unusable) as refused:
        audit_image(str(path))
    code = (refused.value.outcome, refused.value.code)
    assert code in {("rejected", "too_large"), ("rejected", "undecodable"), ("rejected", "unreadable")}
    if make is not huge_avif and make is not huge_webp:  # whose readers compare the sizes that they are told
        assert code == ("rejected", "too_large")
    assert SIDE**2 > MAX_RAW_IMAGE_PX


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_bomb_of_text_is_not_unpacked(tmp_path: Path, name: bytes) -> None:
    packed = zlib.compress(bytes(2**26), 9)  # 64 MiB in 65 KB
    head = {b"zTXt": b"Comment\0\0", b"iTXt": b"Comment\0\1\0\0\0", b"iCCP": b"ICC\0\0"}[name]
    png = encode_picture(SMALL, "PNG")
    path = tmp_path / "raw"
    path.write_bytes(png[:33] + chunk(name, head + packed) + png[33:])
    with pytest.raises(Unusable, match="too large") as refused:
        audit_image(str(path))
    assert refused.value.outcome == "rejected"


def test_frames_are_not_counted(tmp_path: Path) -> None:
    """A GIF of 200,000 frames is known to be an animation after two."""
    data = encode_picture(Image.new("P", (8, 8), 1), "GIF")
    frame = data[13 + 3 * 2 ** ((data[10] & 7) + 1) : -1]
    path = tmp_path / "raw"
    path.write_bytes(data[:-1] + frame * 200_000 + b";")
    assert audit_image(str(path))["is_animated"] is True


PEAK = """
import sys
from pathlib import Path
from assets.media.image.cut import cut_image
from assets.media.audit import audit_image
from assets.media.image.open import read_heif
from assets.media.policy import CutPolicy, ImagePolicy

def told(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name + ":")]
    return int(line.split()[1]) * 1024

read_heif()
small, large, scratch = sys.argv[1:]
for path in (small, large):
    before = told("VmRSS")
    audit_image(path)
    cut_image(path, Path(scratch), CutPolicy(image=ImagePolicy(deep="reduce")))
    print(told("VmHWM") - before)
"""


def peak_bytes_per_px(tmp_path: Path, kind: str, picture: Image.Image, **options: object) -> float:
    """Of a process that has worked on a small one of the same kind before, so that all code is loaded."""
    small, large = tmp_path / "small", tmp_path / "large"
    picture.resize((64, 64), Image.Resampling.NEAREST).save(small, kind, **options)
    picture.save(large, kind, **options)
    told = python("-c", PEAK, small, large, tmp_path, check=True, cwd=Path(__file__).parents[4])
    return int(told.stdout.split()[1]) / (picture.width * picture.height)


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "I;16"), ("JPEG", "CMYK")])
def test_large_picture_is_there_twice_at_most(tmp_path: Path, kind: str, mode: str) -> None:
    """Pillow keeps 4 bytes of a pixel: 8, and the band that is being worked on."""
    picture = Image.linear_gradient("L").resize((3000, 3000))
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.uint16) * 257)
    else:
        picture = picture.convert("RGB" if mode == "P" else mode).convert(mode)
    assert peak_bytes_per_px(tmp_path, kind, picture) < 13
