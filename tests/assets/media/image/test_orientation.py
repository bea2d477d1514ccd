"""Every way in which a file can say which way is up, pixel for pixel, and what happens where two of them disagree."""

import io
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from assets.media.audit import audit_image
from assets.media.image.cut import cut_image
from assets.media.image.file_parts import upright
from assets.media.image.open import photo, read_heif
from assets.media.image.to_srgb import to_srgb
from assets.media.policy import CutPolicy
from loader.modalities import container_parts

PIXELS = np.kron(
    np.random.default_rng(5).integers(30, 220, (4, 6, 3), np.uint8), np.ones((16, 16, 1), np.uint8)
)
# What to do to stored pixels under each number of EXIF (CIPA DC-008, table 4), with numpy alone.
TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a.swapaxes(0, 1), 2),
    8: lambda a: np.rot90(a, 1),
}


def upright_pixels(path: Path) -> np.ndarray:
    read_heif()
    with photo(str(path)) as found:
        made = upright(to_srgb(found.image, found.colour), found.orientation.pending)
        assert made.size == found.upright_size_px
        return np.asarray(made).astype(int)


def write_raw(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "raw"
    path.write_bytes(data)
    return path


def encode_pixels(kind: str, **options: object) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(PIXELS).save(sink, kind, **options)
    return sink.getvalue()


def orientation_exif(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def orientation_xmp(number: int, template: bytes = b'<rdf:Description tiff:Orientation="%d"/>') -> bytes:
    return b'<x:xmpmeta xmlns:x="adobe:ns:meta/">' + template % number + b"</x:xmpmeta>"


def png_with_xmp(number: int, exif: int | None = None) -> bytes:
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", orientation_xmp(number).decode())
    return encode_pixels(
        "PNG", pnginfo=text, **({"exif": orientation_exif(exif)} if exif is not None else {})
    )


def png_of_imagemagick(number: int) -> bytes:
    block = orientation_exif(number).tobytes()
    text = PngInfo()
    text.add_text("Raw profile type exif", f"\nexif\n{len(block):8}\n{block.hex()}\n", zip=True)
    return encode_pixels("PNG", pnginfo=text)


WAYS: dict[str, Callable[[int], bytes]] = {
    "jpeg exif": lambda n: encode_pixels("JPEG", quality=100, subsampling=0, exif=orientation_exif(n)),
    "jpeg xmp": lambda n: encode_pixels("JPEG", quality=100, subsampling=0, xmp=orientation_xmp(n)),
    "png exif": lambda n: encode_pixels("PNG", exif=orientation_exif(n)),
    "png xmp": png_with_xmp,
    "png imagemagick": png_of_imagemagick,
    "webp exif": lambda n: encode_pixels("WEBP", lossless=True, exif=orientation_exif(n)),
    "webp xmp": lambda n: encode_pixels("WEBP", lossless=True, xmp=orientation_xmp(n)),
    "tiff": lambda n: encode_pixels("TIFF", tiffinfo={0x0112: n}),
    "tiff xmp": lambda n: encode_pixels("TIFF", tiffinfo={700: orientation_xmp(n)}),
    "tiff xmp, other quotes": lambda n: encode_pixels(
        "TIFF", tiffinfo={700: orientation_xmp(n, b"<rdf:Description tiff:Orientation = '%d'/>")}
    ),
    "avif": lambda n: encode_pixels("AVIF", quality=100, subsampling="4:4:4", exif=orientation_exif(n)),
}
DECIDED_BY = {"jpeg xmp": "xmp", "png xmp": "xmp", "webp xmp": "xmp", "avif": "container"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", TURNS)
def test_every_format_comes_upright(tmp_path: Path, way: str, number: int) -> None:
    path = write_raw(tmp_path, WAYS[way](number))
    expected = TURNS[number](PIXELS)
    found = upright_pixels(path)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= (3 if way in ("avif", "jpeg exif", "jpeg xmp") else 0)
    row = audit_image(str(path))
    assert (row["width_px"], row["height_px"]) == (96, 64)
    assert (row["upright_width_px"], row["upright_height_px"]) == (expected.shape[1], expected.shape[0])
    by = DECIDED_BY.get(way, "xmp" if "tiff xmp" in way else "exif")
    assert row["orientation_by"] == by
    if by != "container":
        assert row[f"{by}_orientation"] == number


def test_exif_is_believed_against_xmp(tmp_path: Path) -> None:
    """Editors turn the pixels, set EXIF to 1 and forget XMP."""
    for data in (
        encode_pixels("JPEG", quality=100, subsampling=0, exif=orientation_exif(1), xmp=orientation_xmp(6)),
        png_with_xmp(6, exif=1),
        encode_pixels("WEBP", lossless=True, exif=orientation_exif(1), xmp=orientation_xmp(6)),
        encode_pixels("TIFF", tiffinfo={0x0112: 1, 700: orientation_xmp(6)}),
    ):
        path = write_raw(tmp_path, data)
        assert np.abs(upright_pixels(path) - PIXELS).max() <= 3
        row = audit_image(str(path))
        told = (row["exif_orientation"], row["xmp_orientation"], row["orientation_by"])
        assert told == (1, 6, "exif")
    both = write_raw(
        tmp_path,
        encode_pixels("JPEG", quality=100, subsampling=0, exif=orientation_exif(8), xmp=orientation_xmp(6)),
    )
    assert np.abs(upright_pixels(both) - TURNS[8](PIXELS)).max() <= 3


@pytest.mark.parametrize("nonsense", [0, 9])
def test_xmp_is_believed_where_exif_says_nothing_sensible(tmp_path: Path, nonsense: int) -> None:
    for data in (
        encode_pixels(
            "JPEG", quality=100, subsampling=0, exif=orientation_exif(nonsense), xmp=orientation_xmp(6)
        ),
        encode_pixels("TIFF", tiffinfo={0x0112: nonsense, 700: orientation_xmp(6)}),
    ):
        path = write_raw(tmp_path, data)
        assert np.abs(upright_pixels(path) - TURNS[6](PIXELS)).max() <= 3
        row = audit_image(str(path))
        assert (row["exif_orientation"], row["orientation_by"]) == (None, "xmp")


def test_metadata_of_avif_do_not_turn_it(tmp_path: Path) -> None:
    path = write_raw(
        tmp_path, encode_pixels("AVIF", quality=100, subsampling="4:4:4", xmp=orientation_xmp(6))
    )
    assert np.abs(upright_pixels(path) - PIXELS).max() <= 3
    row = audit_image(str(path))
    assert (row["xmp_orientation"], row["orientation_by"]) == (6, "container")


def test_gif_is_as_it_lies(tmp_path: Path) -> None:
    """It has no word for it; its XMP turns nothing, as in every browser."""
    plain = encode_pixels("GIF")
    palette = 13 + 3 * 2 ** ((plain[10] & 7) + 1)
    packet = b"!\xff\x0bXMP DataXMP" + orientation_xmp(6) + b"\1" + bytes(range(255, -1, -1)) + b"\0"
    path = write_raw(tmp_path, plain[:palette] + packet + plain[palette:])
    assert upright_pixels(path).shape == (64, 96, 3)


def box(kind: bytes, body: bytes, version: int | None = None) -> bytes:
    if version is None:
        return container_parts.box(kind, body)
    return container_parts.box(kind, version << 24, body)


def encode_hevc(pixels: np.ndarray) -> tuple[bytes, bytes]:
    """(hvcC box, one lossless HEVC picture) of RGB pixels, full-range BT.601 without subsampling."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "still.mp4")
        lossless = "keyint=1:lossless=1:log-level=none:pools=none:repeat-headers=0"
        with av.open(str(path), "w", format="mp4") as out:
            stream = out.add_stream("libx265", rate=1, options={"x265-params": lossless, "tag": "hvc1"})
            stream.height, stream.width, stream.pix_fmt = *pixels.shape[:2], "yuv444p"
            stream.codec_context.color_range = 2
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            out.mux(
                stream.encode(
                    frame.reformat(format="yuv444p", dst_colorspace="ITU601", dst_color_range="JPEG")
                )
            )
            out.mux(stream.encode(None))
        data = path.read_bytes()
        start = data.index(b"hvcC") - 4
        with av.open(str(path)) as opened:
            picture = next(bytes(packet) for packet in opened.demux(video=0) if packet.size)
        return data[start : start + struct.unpack_from(">I", data, start)[0]], picture


def heic(turns: list[bytes], exif: bytes = b"", colour: bytes | None = None) -> bytes:
    """A HEIC of one item (ISO/IEC 23008-12), with `turns` as its last properties and perhaps an EXIF item."""
    hvcc, picture = encode_hevc(PIXELS)
    height, width = PIXELS.shape[:2]
    nclx = b"nclx" + struct.pack(">HHHB", 1, 13, 6, 0x80)
    size = box(b"ispe", struct.pack(">II", width, height), 0)
    properties = [hvcc, size, box(b"colr", colour or nclx), *turns]
    items = [(1, b"hvc1", picture), *([(2, b"Exif", bytes(4) + exif)] if exif else [])]
    names = b"".join(box(b"infe", struct.pack(">HH4s", n, 0, kind) + b"\0", 2) for n, kind, _ in items)
    uses = bytes((0x80 if n in (0, *range(3, 9)) else 0) | n + 1 for n in range(len(properties)))
    described = box(b"iref", box(b"cdsc", struct.pack(">HHH", 2, 1, 1)), 0) if exif else b""

    def meta(start: int) -> bytes:
        places = struct.pack(">BBH", 0x44, 0, len(items))
        for number, _, data in items:
            places += struct.pack(">HHHII", number, 0, 1, start, len(data))
            start += len(data)
        body = box(b"hdlr", struct.pack(">I4s12x", 0, b"pict") + b"\0", 0)
        body += box(b"pitm", struct.pack(">H", 1), 0) + box(b"iloc", places, 0)
        body += box(b"iinf", struct.pack(">H", len(items)) + names, 0) + described
        used = box(b"ipma", struct.pack(">IHB", 1, 1, len(properties)) + uses, 0)
        return box(b"meta", body + box(b"iprp", box(b"ipco", b"".join(properties)) + used), 0)

    head = box(b"ftyp", b"heic\0\0\0\0mif1heic")
    start = len(head) + len(meta(0)) + 8
    return head + meta(start) + box(b"mdat", b"".join(data for _, _, data in items))


ANTICLOCKWISE, UPSIDE_DOWN, CLOCKWISE = (box(b"irot", bytes([quarters])) for quarters in (1, 2, 3))
TOP_TO_BOTTOM, LEFT_TO_RIGHT = (box(b"imir", bytes([axis])) for axis in (0, 1))


@pytest.mark.parametrize(
    ("turns", "number"),
    [
        ([], 1),
        ([LEFT_TO_RIGHT], 2),
        ([UPSIDE_DOWN], 3),
        ([TOP_TO_BOTTOM], 4),
        ([LEFT_TO_RIGHT, ANTICLOCKWISE], 5),
        ([CLOCKWISE], 6),
        ([LEFT_TO_RIGHT, CLOCKWISE], 7),
        ([ANTICLOCKWISE], 8),
    ],
)
def test_heic_is_turned_by_its_container_and_not_by_its_exif(
    tmp_path: Path, turns: list[bytes], number: int
) -> None:
    expected = TURNS[number](PIXELS)
    for exif in (b"", orientation_exif(6).tobytes()):
        path = write_raw(tmp_path, heic(turns, exif))
        found = upright_pixels(path)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 3
        row = audit_image(str(path))
        assert (row["exif_orientation"], row["orientation_by"]) == (6 if exif else None, "container")


def test_stored_photo_is_turned_and_says_so(tmp_path: Path) -> None:
    path = write_raw(tmp_path, WAYS["jpeg exif"](6))
    (unit,) = cut_image(str(path), tmp_path, CutPolicy())
    assert unit.fields["json"]["raw"]["orientation"] == {"exif": 6, "xmp": None, "by": "exif"}
    with Image.open(unit.fields["jpg"]) as made:
        assert np.abs(np.asarray(made).astype(int) - TURNS[6](PIXELS)).mean() < 6
        assert not made.getexif()
