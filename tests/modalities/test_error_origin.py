"""Only what a decoder says of the bytes is damage: a machine without memory is none."""

import errno
import io
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from loader.errors import DecodeFailed
from loader.modalities import array, fields, find_decoder
from loader.modalities.audio import decode as audio
from loader.modalities.image import decode as image
from loader.modalities.video import demux


def full(*_: object, **__: object) -> None:
    raise MemoryError("no memory left")


def ffmpeg_full(*_: object, **__: object) -> None:
    raise av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory")


def encode_image(pillow_format: str) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(sink, pillow_format)
    return sink.getvalue()


def test_jpeg_that_finds_no_memory_is_no_damaged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image.simplejpeg, "decode_jpeg", full)
    with pytest.raises(MemoryError, match="no memory left"):
        find_decoder("jpg")(encode_image("JPEG"), None)


def test_png_that_finds_no_memory_is_no_damaged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", full)
    with pytest.raises(MemoryError, match="no memory left"):
        find_decoder("png")(encode_image("PNG"), None)


def test_array_that_finds_no_memory_is_no_damaged_one() -> None:
    sink = io.BytesIO()
    np.save(sink, np.arange(3))
    with pytest.raises(MemoryError, match="no memory left"):
        array.decode(sink.getvalue(), None, full)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["wav", "mp4"])
def test_sound_and_video_that_find_no_memory_are_no_damaged_ones(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (audio, demux):
        monkeypatch.setattr(module.av, "open", full)
    with pytest.raises(MemoryError, match="no memory left"):
        find_decoder(field)(b"\0\0\0\x18ftypisom" + bytes(100), None)


@pytest.mark.parametrize(("trial_bytes", "error"), [(1, DecodeFailed), (2**62, MemoryError)])
def test_header_that_asks_for_more_than_any_machine_has_is_damage(
    trial_bytes: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg says the same of both: whether there is memory all the same is asked."""
    monkeypatch.setattr(audio.av, "open", ffmpeg_full)
    monkeypatch.setattr(fields, "_TRIAL_BYTES", trial_bytes)
    with pytest.raises(error):
        find_decoder("wav")(bytes(100), None)


def test_error_is_ours_where_our_code_raised_it() -> None:
    def caught(call: object) -> Exception:
        try:
            call()  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001
            return error
        raise AssertionError

    assert fields.is_ours(caught(lambda: array.decode(3)))  # type: ignore[arg-type]
    assert not fields.is_ours(caught(lambda: Image.new("RGB", (1, 1)).crop((None, 0, 1, 1))))  # type: ignore[arg-type]
    assert not fields.is_ours(caught(lambda: Path("/nowhere at all").read_bytes()))
