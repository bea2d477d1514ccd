"""Stored bytes: decoded as the loader decodes them, within limits, and never by believing a header."""

import io
import json
import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from loader.modalities import find_decoder
from penstock.view.kinds import Facts, find_kind, stored_bytes
from tests.run import media
from tests.view.kinds.values import HOSTILE_TEXT, photo


def facts(field, **more):
    return Facts(field=field, **more)


def encode_pixels(pixels, format, **options):
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, format, **options)
    return sink.getvalue()


def npy(array):
    sink = io.BytesIO()
    np.lib.format.write_array(sink, array, allow_pickle=False)
    return sink.getvalue()


def render_bytes(field, data, **more):
    """(lines, marks, thumbnail, details) of stored bytes."""
    about = facts(field, **more)
    kind = find_kind(data, about)
    assert kind.name == "stored"
    return (
        kind.lines(data, about),
        kind.marks(data, about),
        kind.thumbnail(data, about),
        kind.detail(data, about),
    )


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_picture_is_what_the_loader_decodes(read_pixels, format) -> None:
    data = encode_pixels(photo(300, 400), format)
    lines, marks, thumbnail, (whole,) = render_bytes("jpg", data)
    assert np.array_equal(read_pixels(whole), find_decoder("jpg")(data, None))
    assert lines[1] == "400 x 300 px, RGB, channels last"
    assert read_pixels(thumbnail).shape == (144, 192, 3)
    assert marks == ()


def test_turned_jpeg_is_upright(read_pixels) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    left = np.zeros((800, 1200, 3), np.uint8)
    left[:, 600:] = 255
    _, _, thumbnail, (whole,) = render_bytes("jpg", encode_pixels(left, "JPEG", exif=exif))
    small = read_pixels(thumbnail)
    assert (small.shape, read_pixels(whole).shape) == ((192, 128, 3), (1200, 800, 3))
    assert small[:80].max() < 20  # turned clockwise, the left half lies above
    assert small[110:].min() > 235


def test_sound_is_what_the_loader_decodes() -> None:
    data = media.sound(3, "flac", "flac")
    lines, _, thumbnail, (heard, _) = render_bytes("flac", data)
    samples, rate = soundfile.read(io.BytesIO(heard.data), dtype="float32", always_2d=True)
    assert rate == media.RATE_HZ
    assert np.array_equal(samples.T, find_decoder("flac")(data, None))
    assert lines[1] == "1 channel, 0.1 s at 8,000 Hz"
    assert thumbnail.type == "image/png"


def test_long_sound_is_decoded_to_the_limit(monkeypatch) -> None:
    monkeypatch.setattr(stored_bytes, "MAX_AUDIO_BYTES", 40_000)
    sink = io.BytesIO()
    tone = np.sin(np.arange(100_000) * 0.1) / 2
    soundfile.write(sink, tone, 8000, format="WAV", subtype="PCM_16")
    lines, _, _, (heard, _) = render_bytes("wav", sink.getvalue())
    assert lines[1] == "the first 1.2 s are shown"
    assert soundfile.info(io.BytesIO(heard.data)).frames == 10_000


def test_film_is_shown_by_frames_of_the_loader(read_pixels) -> None:
    data = media.video(5)
    lines, marks, thumbnail, frames = render_bytes("mp4", data)
    assert lines[1] == "h264, 40 frames, 1.6 s, 25 a second"
    assert len(frames) == 16
    import loader

    assert np.array_equal(read_pixels(frames[-1]), loader.video(frames=1, start=39)(data)[0])
    assert np.array_equal(read_pixels(thumbnail), loader.video(frames=1, start=20)(data)[0])
    assert marks == ()


def test_film_with_few_keyframes_costs_few_packets(monkeypatch, read_pixels) -> None:
    monkeypatch.setattr(stored_bytes, "MAX_PACKETS", 10)
    _, _, _, frames = render_bytes("mp4", media.video(5))
    assert [media.first_frame(read_pixels(one)[None]) for one in frames] == list(range(10))


@pytest.mark.parametrize(
    ("field", "data", "line"),
    [
        ("caption.txt", b"A cat", "A cat"),
        ("cls", b"1", "1: dog"),
        ("meta.json", b'{"a": 1}', '  "a": 1'),
        ("meta.jsonl", b"[1]\n[2]\n", "    2"),
        ("x.npy", npy(np.arange(3)), "0 1 2"),
    ],
)
def test_text_numbers_and_arrays_are_decoded(field, data, line) -> None:
    lines, marks, _, _ = render_bytes(field, data, labels=["cat", "dog"] if field == "cls" else None)
    assert line in lines
    assert marks == ()


def test_stored_tokens_have_boxes() -> None:
    about = facts("tokens.npy", special={2: "<eos>"})
    data = npy(np.array([7, 2]))
    assert [one.text for one in find_kind(data, about).boxes(data, about)] == ["", "<eos>"]


def test_large_json_is_shown_as_text() -> None:
    data = json.dumps(["[" * 100] * 20_000).encode()
    lines, _, _, _ = render_bytes("meta.json", data)
    assert lines[1] == f"{len(data):,} characters"


def test_of_a_long_text_the_beginning_is_shown(monkeypatch) -> None:
    monkeypatch.setattr(stored_bytes, "MAX_TEXT_BYTES", 10)
    assert render_bytes("caption.txt", "äöü".encode() * 100)[0][1:3] == (
        "the first 10 B are shown",
        "5 characters",
    )


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def make_png(width, height, pixels):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_deep_png_is_shown_in_8_bits_and_the_page_names_how(read_pixels) -> None:
    levels = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) + np.uint16(1000)
    lines, _, _, (whole,) = render_bytes("png", encode_pixels(levels, "PNG"))
    assert "shown from 1,000 to 5,095" in lines
    assert (read_pixels(whole)[0, 0] == 0).all()
    assert (read_pixels(whole)[-1, -1] == 255).all()
    colour = np.repeat(levels[:, :, None], 3, axis=2)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colour)
    header = struct.pack(">IIBBBBB", 64, 64, 16, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    lines, _, _, (whole,) = render_bytes("png", b"\x89PNG\r\n\x1a\n" + data)
    assert "16 bits per sample, of which the high byte is shown" in lines
    assert np.array_equal(read_pixels(whole), (colour >> 8).astype(np.uint8))


def lying_jpeg(height, width):
    data = encode_pixels(photo(), "JPEG")
    at = data.index(b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def lying_npy(shape):
    data = npy(np.zeros(4))
    start = data.index(b"(4,), }")
    return data[:start] + f"{shape}, }}".encode().ljust(127 - start) + data[127:]


HOSTILE = {
    "a PNG of 100,000 x 100,000 px": ("png", make_png(100_000, 100_000, zlib.compress(bytes(10**6)))),
    "a JPEG of 65,500 x 65,500 px": ("jpg", lying_jpeg(65_500, 65_500)),
    "a WebP of 16,383 x 16,383 px": (
        "webp",
        b"RIFF\x40\0\0\0WEBPVP8L\x30\0\0\0\x2f" + ((16382 << 14) | 16382).to_bytes(4, "little") + bytes(48),
    ),
    "an array of 8 EB": ("npy", lying_npy("(1000000000, 1000000000)")),
    "half a PNG": ("png", encode_pixels(photo(200, 200), "PNG")[:5000]),
    "a text for a picture": ("jpg", HOSTILE_TEXT.encode("utf-8", "replace")),
    "a text that is not UTF-8": ("txt", b"\xff\xfe\x1b[31m"),
    "JSON within JSON": ("json", b"[" * 100_000),
    "no JSON": ("json", b"{\x1b]0;x\x07"),
    "no label": ("cls", b"cat\x1b[31m"),
    "noise for a film": ("mp4", photo(100, 100).tobytes()),
    "a film cut short": ("mp4", media.video(1)[:3000]),
    "noise for a sound": ("flac", photo(100, 100).tobytes()),
    "a playlist": ("wav", b"#EXTM3U\nfile:///etc/passwd\n"),
    "nothing": ("jpg", b""),
    "pickled objects": (
        "npy",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(128),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_marked_and_cost_little(name) -> None:
    field, data = HOSTILE[name]
    tracemalloc.start()
    lines, marks, thumbnail, detail = render_bytes(field, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.name for one in marks] == ["unreadable"]
    assert (thumbnail, detail) == (None, ())
    assert lines[1].startswith("cannot be shown: ")
    assert "\x1b" not in "".join(lines)
    assert peak < 2**25


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("png", make_png(8000, 8000, b"")),
        ("jpg", lying_jpeg(8000, 8000)),
        ("webp", b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (7999).to_bytes(3, "little") * 2),
        ("webp", b"RIFF\x40\0\0\0WEBPVP8 \x30\0\0\0\0\0\0\x9d\x01\x2a" + (8000).to_bytes(2, "little") * 2),
    ],
)
def test_large_picture_is_refused_by_its_header(field, data) -> None:
    assert render_bytes(field, data)[1][0].text == "8000 x 8000 px; at most 33,554,432 px are shown"


def test_other_bytes_are_not_decoded() -> None:
    assert find_kind(b"\xff\xd8", facts("bin")).name == "other"


def test_real_media_are_shown() -> None:
    """The small files of the corpus, where PENSTOCK_MEDIA names it: none raises, and a sound one has a picture."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    words = {"jpg", "png", "webp", "mp4", "mov", "mkv", "webm", "wav", "flac", "mp3", "ogg", "opus"}
    for path in sorted(Path(folder).rglob("*.*")) if folder else ():
        about = facts("x" + path.suffix.lower())
        if about.word not in words or path.stat().st_size > 2**20:
            continue
        data = path.read_bytes()
        lines, marks, thumbnail, detail = render_bytes(about.field, data)
        broken = any(one.name == "unreadable" for one in marks)
        assert (thumbnail is None, detail == ()) == (broken, broken), (path.name, lines)
