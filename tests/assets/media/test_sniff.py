import io
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from assets.media.sniff import EMPTY, UNKNOWN, sniff


@pytest.mark.parametrize(
    ("pillow_format", "mime"),
    [
        ("JPEG", "image/jpeg"),
        ("PNG", "image/png"),
        ("WEBP", "image/webp"),
        ("GIF", "image/gif"),
        ("TIFF", "image/tiff"),
        ("BMP", "image/bmp"),
    ],
)
def test_pictures(pillow_format: str, mime: str) -> None:
    sink = io.BytesIO()
    Image.new("RGB", (8, 8)).save(sink, pillow_format)
    assert sniff(sink.getvalue()[:4096]) == mime


@pytest.mark.parametrize(
    ("container", "codec", "mime"),
    [
        ("mp3", "libmp3lame", "audio/mpeg"),
        ("adts", "aac", "audio/aac"),
        ("flac", "flac", "audio/flac"),
        ("ogg", "libopus", "audio/ogg"),
        ("wav", "pcm_s16le", "audio/wav"),
        ("matroska", "libopus", "video/x-matroska"),
        ("webm", "libopus", "video/webm"),
        ("mp4", "aac", "video/mp4"),
        ("ipod", "aac", "audio/mp4"),
        ("mov", "pcm_s16le", "video/mp4"),
        ("avi", "pcm_s16le", "video/x-msvideo"),
        ("mpegts", "mp2", "video/mp2t"),
    ],
)
def test_containers(tmp_path: Path, container: str, codec: str, mime: str) -> None:
    path = tmp_path / "any"
    with av.open(str(path), "w", format=container) as output:
        stream = output.add_stream(codec, rate=48000, layout="mono")
        resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48000), np.int16), format="s16", layout="mono")
        frame.sample_rate = 48000
        fifo = av.AudioFifo()
        for piece in resampler.resample(frame):
            fifo.write(piece)
        while piece := fifo.read(stream.codec_context.frame_size or 1024, partial=True):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    assert sniff(path.read_bytes()[:4096]) == mime


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"", EMPTY),
        (b"\x00\x01\x02\x03" * 9, UNKNOWN),
        (b"\xff" * 40, UNKNOWN),
        (b"hello\n", "text/plain"),
        ("größe".encode() * 1000, "text/plain"),
        (b' {"a": 1}', "application/json"),
        (b"<!DOCTYPE html><html>", "text/html"),
        (b"%PDF-1.7", "application/pdf"),
        (b"PK\x03\x04rest", "application/zip"),
        (b"GI", "text/plain"),
        (b"\xff\xd8", UNKNOWN),
    ],
)
def test_others(head: bytes, mime: str) -> None:
    assert sniff(head[:4096]) == mime


def test_letter_cut_by_the_end_of_the_head_is_still_text() -> None:
    text = ("x" + "ü" * 4000).encode()[:4096]
    assert text[-1:] == b"\xc3"
    assert sniff(text) == "text/plain"


def test_name_plays_no_part(make_jpeg: Callable[..., bytes]) -> None:
    assert sniff(make_jpeg()[:4096]) == "image/jpeg"  # whatever suffix the file had


@pytest.mark.parametrize(
    ("brands", "mime"),
    [
        ((b"heic", b"mif1"), "image/heic"),
        ((b"heix",), "image/heic"),
        ((b"hevc", b"msf1", b"heic"), "image/heic"),
        ((b"mif1", b"heic"), "image/heic"),
        ((b"mif1", b"miaf", b"avif"), "image/avif"),
        ((b"msf1", b"avis"), "image/avif"),
        ((b"mif1",), "image/heic"),
        ((b"avif", b"mif1"), "image/avif"),
        ((b"isom", b"avif"), "video/mp4"),
    ],
)
def test_brands_of_pictures(brands: tuple[bytes, ...], mime: str) -> None:
    """Which codec a file of brand mif1 or msf1 has, its other brands say."""
    body = brands[0] + bytes(4) + b"".join(brands)
    assert sniff((8 + len(body)).to_bytes(4, "big") + b"ftyp" + body + b"\0\0\0\x20avif") == mime
