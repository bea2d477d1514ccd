"""Files without their tail, of every container that states a size or a length; whole ones pass."""

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from assets.media.audit import audit
from assets.media.container import check_duration
from assets.media.cutters import ALL_KINDS
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.stated_sizes import check_sizes
from assets.media.unit import Unusable
from loader.errors import DecodeFailed
from loader.modalities.audio.decode import decode as decode_sound
from loader.modalities.container_parts import riff_chunk
from tests.refusals import refusal

SoundFile = Callable[..., str]
EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
TONE = 0.3 * np.sin(np.arange(4 * 8000) / 5)


def audit_file(path: Path) -> dict[str, object]:
    return audit(str(path), sniff(path.read_bytes()[:HEAD_BYTES]), ALL_KINDS)


def check_cuts(path: Path, n_samples: int, shares: tuple[float, ...] = (0.8, 0.97)) -> None:
    """The whole file has its samples; without its tail it is truncated."""
    whole = path.read_bytes()
    assert audit_file(path)["n_samples"] == pytest.approx(n_samples, abs=4096)
    for share in shares:
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(Unusable) as caught:
            audit_file(path)
        assert (caught.value.outcome, caught.value.code) == ("rejected", "truncated"), share


@pytest.mark.parametrize(
    ("container", "codec", "rate_hz"),
    [
        ("wav", "pcm_s16le", 8000),
        ("w64", "pcm_s16le", 8000),
        ("aiff", "pcm_s16be", 8000),
        ("caf", "pcm_s16le", 8000),
        ("caf", "alac", 8000),
        ("ogg", "libopus", 48000),
        ("ogg", "flac", 8000),
        ("matroska", "flac", 8000),
        ("webm", "libopus", 48000),
        ("mov", "pcm_s16le", 8000),
        ("flv", "aac", 44100),
        ("ac3", "ac3", 48000),
        ("eac3", "eac3", 48000),
    ],
)
def test_sound_of_four_seconds_without_its_last_fifth_is_truncated(
    sound_file: SoundFile, container: str, codec: str, rate_hz: int
) -> None:
    tone = np.resize(TONE, 4 * rate_hz)
    path = Path(sound_file(tone, rate_hz, container=container, codec=codec))
    # A cut of AC-3 between two frames of one length would be a shorter sound.
    check_cuts(path, 4 * rate_hz, (0.803, 0.973) if "ac3" in container else (0.8, 0.97))


def test_windows_media_sound_without_its_tail_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "sound"
    with av.open(str(path), "w", format="asf") as out:
        stream = out.add_stream("wmav2", rate=44100, layout="stereo")
        stream.bit_rate = 128_000
        tone = np.repeat(np.resize(TONE, 2 * 44100), 2).astype(np.float32)[None, :]
        frame = av.AudioFrame.from_ndarray(tone, format="flt", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = 44100, 0, Fraction(1, 44100)
        fifo = av.AudioFifo()
        for piece in av.AudioResampler(format="fltp", layout="stereo", rate=44100).resample(frame):
            fifo.write(piece)
        while (piece := fifo.read(stream.codec_context.frame_size, partial=True)) is not None:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    check_cuts(path, 2 * 44100)


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("matroska", "libx264"),
        ("webm", "libvpx"),
        ("mp4", "libx264"),
        ("mov", "libx264"),
        ("avi", "mpeg4"),
        ("flv", "flv"),
    ],
)
def test_video_of_four_seconds_without_its_last_fifth_is_truncated(
    encode_video: EncodeVideo, numbered_frames: MakeFrames, container: str, codec: str
) -> None:
    options = {"g": "25"} | ({"deadline": "realtime", "cpu-used": "8"} if codec == "libvpx" else {})
    check_video(
        Path(encode_video(numbered_frames(100, 48, 64), container=container, codec=codec, options=options))
    )


def test_mxf_of_four_seconds_without_its_last_fifth_is_truncated(
    tmp_path: Path, numbered_frames: MakeFrames
) -> None:
    check_video(mxf(tmp_path / "video", numbered_frames(100, 48, 64)))


def mxf(path: Path, frames: list[np.ndarray]) -> Path:
    with av.open(str(path), "w", format="mxf") as out:
        stream = out.add_stream("mpeg2video", rate=25)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def check_video(path: Path) -> None:
    """The whole file has its 100 frames; without its tail it is truncated."""
    whole = path.read_bytes()
    assert audit_file(path)["n_frames_decoded"] == 100
    for share in (0.8, 0.97):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(Unusable) as caught:
            audit_file(path)
        assert (caught.value.outcome, caught.value.code) == ("rejected", "truncated"), share


def test_dv_without_the_end_of_its_last_frame_is_truncated(encode_video: EncodeVideo) -> None:
    frames = [np.full((576, 720, 3), 60 + 20 * number, np.uint8) for number in range(3)]
    path = Path(encode_video(frames, container="dv", codec="dvvideo", options={}))
    assert sniff(path.read_bytes()[:HEAD_BYTES]) == "video/dv"
    assert audit_file(path)["n_frames_decoded"] == 3
    path.write_bytes(path.read_bytes()[:-1000])
    with refusal(Unusable, what="truncated", where="frames", given=431000):
        audit_file(path)


def test_live_matroska_states_no_size_and_passes(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    path = Path(encode_video(numbered_frames(30, 48, 64), container="matroska", options={"g": "10"}))
    data = path.read_bytes()
    at = data.index(b"\x18\x53\x80\x67") + 4
    path.write_bytes(data[:at] + b"\x01" + b"\xff" * 7 + data[at + 8 :])  # a segment of unknown size
    assert audit_file(path)["n_frames_decoded"] == 30


def test_ogg_that_was_stopped_between_two_pages_passes(sound_file: SoundFile) -> None:
    path = Path(sound_file(np.resize(TONE, 4 * 48000), 48000, container="ogg", codec="libopus"))
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"OggS")])
    assert audit_file(path)["n_samples"] > 40_000
    path.write_bytes(data + b"TAG behind the last page")
    assert audit_file(path)["n_samples"] == 4 * 48000


# A W64 states the bytes of its samples, an Ogg those of each page.
@pytest.mark.parametrize(
    ("container", "codec", "nbytes"), [("ogg", "libopus", None), ("w64", "pcm_s16le", 4 * 48000)]
)
def test_training_refuses_a_sound_without_its_tail(
    sound_file: SoundFile, container: str, codec: str, nbytes: int | None
) -> None:
    data = Path(sound_file(np.resize(TONE, 2 * 48000), 48000, container=container, codec=codec)).read_bytes()
    assert decode_sound(data).shape == (1, 2 * 48000)
    with refusal(DecodeFailed, what=container, accepted=nbytes):
        decode_sound(data[: len(data) * 4 // 5])


def truncation_error(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(Unusable) as caught:
        check_sizes(str(path))
    assert (caught.value.outcome, caught.value.code) == ("rejected", "truncated")
    return str(caught.value)


def passes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    check_sizes(str(path))


def test_second_part_of_a_large_avi_is_compared(tmp_path: Path) -> None:
    part = riff_chunk(b"RIFF", b"AVI " + bytes(100))
    second = riff_chunk(b"RIFF", b"AVIX" + bytes(200))
    passes(tmp_path / "x", part + second)
    assert "324 bytes" in truncation_error(tmp_path / "x", part + second[:-40])
    passes(tmp_path / "x", part[:4] + bytes(4) + part[8:-50])  # its writer could not go back


def test_mxf_without_a_footer_was_not_closed(tmp_path: Path, numbered_frames: MakeFrames) -> None:
    path = mxf(tmp_path / "video", numbered_frames(5, 48, 64))
    data = bytearray(path.read_bytes())
    data[20 + 24 : 20 + 32] = bytes(
        8
    )  # a header that was written first, and never again: the index is still there
    passes(path, bytes(data))
    assert "no footer" in truncation_error(path, bytes(data[:-100]))


def test_boxes_of_unknown_sizes_state_nothing(tmp_path: Path) -> None:
    box = struct.pack(">I4s", 16, b"ftyp") + b"isom\0\0\0\0"
    passes(tmp_path / "x", box + struct.pack(">I4s", 0, b"mdat") + bytes(50))
    passes(tmp_path / "x", box + struct.pack(">I4sQ", 1, b"mdat", 66) + bytes(50))
    assert "82 bytes" in truncation_error(
        tmp_path / "x", box + struct.pack(">I4sQ", 1, b"mdat", 66) + bytes(40)
    )
    passes(tmp_path / "x", box + struct.pack(">I4s", 900, b"free") + bytes(5))  # nothing is missing in it
    caf = b"caff" + bytes(4) + b"data" + struct.pack(">q", -1) + bytes(20)
    passes(tmp_path / "x", caf)


class Header:
    """The facts of a container that `check_duration` reads."""

    def __init__(self, seconds: float) -> None:
        self.duration, self.start_time = round(seconds * 1e6), 0
        self.format = type("Format", (), {"name": "matroska,webm"})


@pytest.mark.parametrize(
    ("announced_s", "found_s", "step_s", "is_whole"),
    [
        (4.0, 3.2, 0.04, False),
        (4.0, 3.95, 0.04, True),
        (0.5, 0.42, 0.04, True),
        (0.5, 0.35, 0.04, False),
        (3600.0, 3599.1, 0.04, True),
        (3600.0, 3598.9, 0.04, False),
        (4.0, 3.5, 0.5, True),  # two frames a second
        (40.0, 38.9, 5.0, False),
    ],
)
def test_tolerance_of_a_duration_follows_the_length(
    announced_s: float, found_s: float, step_s: float, is_whole: bool
) -> None:
    header = Header(announced_s)
    if is_whole:
        missing_s = check_duration(header, found_s, step_s)  # type: ignore[arg-type]
        assert missing_s == pytest.approx(announced_s - found_s)
        return
    with refusal(Unusable, what="truncated", where="duration", given=found_s):
        check_duration(header, found_s, step_s)  # type: ignore[arg-type]


def test_live_matroska_with_a_duration_is_held_against_it(
    encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    path = Path(encode_video(numbered_frames(100, 48, 64), container="matroska", options={"g": "10"}))
    data = path.read_bytes()
    at = data.index(b"\x18\x53\x80\x67") + 4
    live = data[:at] + b"\x01" + b"\xff" * 7 + data[at + 8 :]
    path.write_bytes(live[: len(live) * 4 // 5])
    with refusal(Unusable, what="truncated", where="duration", accepted=4.0):
        audit_file(path)
