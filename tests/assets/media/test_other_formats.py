"""Damaged, not supported, not media: three words. And errors that say nothing of the bytes at all."""

import errno
import io
import struct
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from assets.media import audit as media_audit
from assets.media.audit import audit
from assets.media.cutters import ALL_KINDS, NOT_SUPPORTED, check_is_media
from assets.media.sniff import SUBTITLES, UNKNOWN, sniff
from assets.media.unit import Unusable
from loader.errors import StoreError
from loader.modalities import fields
from tests.refusals import refusal

SoundFile = Callable[..., str]
EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]


def audit_refusal(path: Path, data: bytes | None = None) -> tuple[str, str, str]:
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(Unusable) as caught:
        audit(str(path), sniff(path.read_bytes()[:4096]), ALL_KINDS)
    return caught.value.outcome, caught.value.code, str(caught.value)


def encode_image(pillow_format: str, **options: object) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(sink, pillow_format, **options)
    return sink.getvalue()


SVG = b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'
TGA = bytes([0, 0, 2]) + bytes(9) + struct.pack("<HHBB", 8, 8, 24, 0) + bytes(192)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (encode_image("JPEG2000"), "JPEG 2000"),
        (encode_image("JPEG2000", no_jp2=True), "JPEG 2000"),
        (encode_image("PPM"), "PPM, PGM"),
        (b"P2\n# grey\n2 1\n255\n0 255\n", "PPM, PGM"),
        (encode_image("TGA"), "TGA"),
        (encode_image("TGA", rle=True), "TGA"),
        (TGA, "TGA"),
        (encode_image("ICO"), "an icon"),
        (encode_image("DDS"), "DDS"),
        (SVG, "SVG"),
        (b"8BPS\0\1" + bytes(20), "Photoshop"),
        (b"\xff\x0a" + bytes([0xFA, 0x7F]) * 9, "JPEG XL"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1" + bytes(40), "a camera's raw format"),
        (b"MThd\0\0\0\6\0\1", "MIDI"),
        (b"\x7f\xfe\x80\x01" + bytes(20), "DTS"),
        (b"DSD \x1c\0\0\0", "DSD"),
        (b"YUV4MPEG2 W2 H2 F25:1\nFRAME\n" + bytes([200] * 6), "YUV4MPEG"),
        (b"\0\0\1\xb3\x01\x20\x12\x13", "raw MPEG video"),
        (b"\0\0\0\1\x40\1\x0c\1\xff\xff", "raw HEVC"),
    ],
)
def test_known_format_is_not_supported_by_its_name(tmp_path: Path, data: bytes, name: str) -> None:
    outcome, code, said = audit_refusal(tmp_path / "x", data)
    assert (outcome, code) == ("not_supported", "not_supported")
    assert said.startswith(f"{name}")
    assert " is not supported; " in said


@pytest.mark.parametrize(
    ("container", "codec", "name"),
    [("wv", "wavpack", "WavPack"), ("tta", "tta", "True Audio"), ("au", "pcm_s16be", "AU")],
)
def test_known_sound_is_not_supported_by_its_name(
    tmp_path: Path, sound_file: SoundFile, container: str, codec: str, name: str
) -> None:
    path = Path(sound_file(np.zeros(8000), 8000, container=container, codec=codec))
    assert audit_refusal(path) == (
        "not_supported",
        "not_supported",
        f"{name} is not supported; {NOT_SUPPORTED['audio/x-tta'][1]}",
    )


@pytest.mark.parametrize(
    ("container", "codec", "name"),
    [
        ("h264", "libx264", "raw H.264"),
        ("ivf", "libvpx", "IVF"),
        ("asf", "wmv2", "Windows Media video (wmv2)"),
    ],
)
def test_known_video_is_not_supported_by_its_name(
    encode_video: EncodeVideo, numbered_frames: MakeFrames, container: str, codec: str, name: str
) -> None:
    path = Path(encode_video(numbered_frames(3), container=container, codec=codec, options={"g": "25"}))
    outcome, code, said = audit_refusal(path)
    assert (outcome, code) == ("not_supported", "not_supported")
    assert said.startswith(f"{name} is not supported; ")
    assert "ffmpeg" in said


@pytest.mark.parametrize("text", [b"caffeine", b"FWS is short", b"MAC address", b"P1 and P2", b"DSD or PCM?"])
def test_text_that_begins_as_a_format_is_text(text: bytes) -> None:
    assert sniff(text) == "text/plain"


def test_codecs_without_a_decoder_are_not_supported(
    sound_file: SoundFile, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    path = Path(sound_file(np.zeros(48_000), container="matroska", codec="libopus"))
    outcome, code, _ = audit_refusal(path, path.read_bytes().replace(b"A_OPUS", b"A_NONE"))
    assert (outcome, code) == ("not_supported", "unknown_codec")
    path = Path(encode_video(numbered_frames(3)))
    outcome, code, _ = audit_refusal(
        path, path.read_bytes().replace(b"avc1", b"zzz1").replace(b"avcC", b"zzzC")
    )
    assert (outcome, code) == ("not_supported", "unknown_codec")


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("photos/1.jpg", b"<!DOCTYPE html><html>Not Found", "web_page"),
        ("photos/1", b"<html><body>502 Bad Gateway", "web_page"),
        ("photos/2.png", b"\xef\xbb\xbf<!-- cache --> <HTML>", "web_page"),
        ("films/a.mp4", b"404: not found\n", "other_content"),
        ("films/a.mkv", b'{"error": "denied"}', "other_content"),
        ("a.wav", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "other_content"),
        ("a.png", b"PK\3\4" + bytes(30), "other_content"),
        ("model.bin", bytes(range(1, 200)), "unknown_type"),
    ],
)
def test_page_or_an_archive_in_the_place_of_media_is_no_media(name: str, data: bytes, code: str) -> None:
    with pytest.raises(Unusable) as caught:
        check_is_media(name, sniff(data))
    assert (caught.value.outcome, caught.value.code) == ("not_media", code)


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("photos/1.jpg", "image/png"),  # a suffix that lies among media decides nothing
        ("photos/1.jpg", "image/x-tga"),
        ("photos/1.jpg", UNKNOWN),  # a photo without its head, maybe: damaged
        ("photos/1.jpg", "application/x-empty"),
        ("films/a.rm.mp4", "application/vnd.rn-realmedia"),
        ("page.html", "text/html"),
        ("notes.txt", UNKNOWN),
        ("report.pdf", "application/pdf"),
        ("program.ts", "text/plain"),
        ("no suffix", "application/json"),
        ("no suffix", UNKNOWN),
    ],
)
def test_name_that_fits_or_says_nothing_decides_nothing(name: str, mime: str) -> None:
    check_is_media(name, mime)


@pytest.mark.parametrize(
    ("text", "mime"),
    [
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nHello\n", SUBTITLES[0]),
        ("\ufeffWEBVTT - a title\n", SUBTITLES[0]),
        ("1\r\n00:00:01,000 --> 00:00:02,500\r\nHello\r\n", SUBTITLES[1]),
        ("00:00:01.000 --> 00:00:02.500\nHello\n", SUBTITLES[1]),
        ("[Script Info]\nTitle: x\n", SUBTITLES[2]),
        ("WEBVTTS are many\n", "text/plain"),
        ("1\nis a number\n", "text/plain"),
        ("12:30:00 --> lunch\n", "text/plain"),
    ],
)
def test_subtitles_are_no_text_of_their_own(tmp_path: Path, text: str, mime: str) -> None:
    path = tmp_path / "x"
    path.write_text(text, "utf-8")
    assert sniff(path.read_bytes()) == mime
    if mime in SUBTITLES:
        assert audit_refusal(path)[:2] == ("dropped", "subtitles")
    else:
        assert audit(str(path), mime, ALL_KINDS)["n_documents"] == 1


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo"
    path.write_bytes(encode_image("PNG"))
    return path


def test_want_of_memory_is_no_damage(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("no room for the pixels")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", full)
    with pytest.raises(MemoryError) as full_memory:
        audit(str(photo), "image/png")
    assert full_memory.value.args == ("no room for the pixels",)


def test_disk_at_fault_is_no_damage(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def many(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Image, "open", many)
    with refusal(StoreError, what="temporary space", given="Too many open files"):
        audit(str(photo), "image/png")


def test_bug_of_ours_is_no_damage(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_audit, "bit_depth", None)
    with pytest.raises(TypeError, match="not callable"):
        audit(str(photo), "image/png")


def test_same_error_in_the_code_of_a_decoder_is_damage(photo: Path) -> None:
    """Pillow calls what it may not, for damaged files: see `DAMAGE`."""
    with pytest.raises(Unusable) as caught, media_audit.photo(str(photo)):
        Image.new("RGB", (1, 1)).crop((None, 0, 1, 1))  # type: ignore[arg-type]
    assert (caught.value.outcome, caught.value.code) == ("rejected", "undecodable")


@pytest.mark.parametrize("has_memory", [True, False])
def test_ffmpeg_without_memory_is_asked_why(
    sound_file: SoundFile, monkeypatch: pytest.MonkeyPatch, has_memory: bool
) -> None:
    """A header that asks for more than any machine has is damage; a machine that has none left is not."""
    path = sound_file(np.zeros(8000), 8000)

    def full(*_: object, **__: object) -> None:
        raise av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(av, "open", full)
    if not has_memory:
        monkeypatch.setattr(fields, "_TRIAL_BYTES", 2**62)
    with pytest.raises(Unusable if has_memory else MemoryError):
        audit(path, "audio/wav")


def test_codec_that_ffmpeg_has_not_implemented_is_not_supported(
    sound_file: SoundFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sound_file(np.zeros(8000), 8000)

    def not_yet(*_: object, **__: object) -> None:
        raise av.error.PatchWelcomeError(1, "Not yet implemented in FFmpeg, patches welcome")

    monkeypatch.setattr(av, "open", not_yet)
    assert audit_refusal(Path(path))[:2] == ("not_supported", "not_implemented")
