from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from assets.media.audio.cut import cut_audio
from assets.media.audio.decode import AudioTimeline, read_pieces
from assets.media.clips.cut import cut_video
from assets.media.container import open_container, require_audio
from assets.media.policy import CutPolicy, VideoPolicy
from assets.media.unit import Unit, Unusable
from tests.refusals import refusal

EncodeVideo = Callable[..., str]
MakeFrames = Callable[..., list[np.ndarray]]
POLICY = CutPolicy(video=VideoPolicy(short_side_px=64, clip_s=1.0, max_clips=3))


def decode_sound(unit: Unit, field: str = "sound.flac") -> np.ndarray:
    with av.open(str(unit.fields[field])) as sound:
        assert sound.streams.audio[0].rate == 16000
        return np.concatenate([frame.to_ndarray()[0] for frame in sound.decode(audio=0)]).astype(int)


def click(samples: np.ndarray) -> float:
    """Where the energy lies, in samples."""
    weight = samples.astype(float) ** 2
    return float((np.arange(len(samples)) * weight).sum() / weight.sum())


@pytest.mark.parametrize("codec", ["flac", "aac", "alac"])
@pytest.mark.parametrize("rate_hz", [16000, 44100, 48000])
def test_clicks_stay_with_their_flashes(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames, codec: str, rate_hz: int
) -> None:
    frames = [picture // 4 for picture in numbered_frames(75)]
    samples = np.zeros(3 * rate_hz, np.int16)
    for second in range(3):  # a white frame, and a click in its middle
        frames[25 * second + 10][:] = 255
        middle = round((second + 0.42) * rate_hz)
        burst = np.arange(-60, 60)  # 2 kHz
        samples[middle - 60 : middle + 60] = (
            20000 * np.hanning(120) * np.sin(2 * np.pi * 2000 * burst / rate_hz)
        )
    # Sound that is not there is not compared: AAC needs something to hold on to between the clicks.
    samples += np.random.default_rng(0).integers(-3, 4, len(samples), np.int16)
    units = cut_video(encode_video(frames, sound=(samples, rate_hz, codec)), tmp_path, POLICY)
    assert len(units) == 3
    for unit in units:
        assert unit.groups["sound.flac"] == "sound"
        assert (unit.metadata["has_sound"], unit.metadata["sound_missing_s"]) == (True, 0.0)
        with av.open(str(unit.fields["mp4"])) as clip:
            levels = {f.pts: f.to_ndarray(format="gray").mean() for f in clip.decode(video=0)}
        flash_s = max(levels, key=lambda pts: levels[pts]) / 1000
        found = decode_sound(unit)
        assert len(found) == 16000
        found = np.where(np.abs(found) > 100, found, 0)
        assert abs(click(found) / 16000 - (flash_s + 0.02)) < 0.001


def test_silent_video_has_no_sound(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    for unit in cut_video(encode_video(numbered_frames(50)), tmp_path, POLICY):
        assert "sound.flac" not in unit.fields
        assert (unit.metadata["has_sound"], unit.metadata["sound_missing_s"]) == (False, None)


def test_sound_that_ends_before_the_picture_is_told(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames
) -> None:
    tone = (8000 * np.sin(np.arange(24000) / 5)).astype(np.int16)  # 1.5 of 3 s
    first, second, third = cut_video(
        encode_video(numbered_frames(75), sound=(tone, 16000, "flac")), tmp_path, POLICY
    )
    assert np.array_equal(decode_sound(first), tone[:16000])
    assert np.array_equal(decode_sound(second), np.concatenate([tone[16000:], np.zeros(8000, np.int16)]))
    assert second.metadata["sound_missing_s"] == 0.5
    assert (third.metadata["has_sound"], "sound.flac" in third.fields) == (False, False)


def wav(path: Path, samples: np.ndarray, rate_hz: int) -> str:
    """int16 [channels, samples]."""
    with av.open(str(path), "w", format="wav") as out:
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
        stream = out.add_stream("pcm_s16le", rate=rate_hz, layout=layout)
        packed = np.ascontiguousarray(samples.T.reshape(1, -1))
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
        frame.sample_rate, frame.pts = rate_hz, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return str(path)


@pytest.mark.parametrize("rate_hz", [8000, 11025, 12000, 22050, 44100, 48000, 96000, 192000])
@pytest.mark.parametrize("n_samples", [9999, 31337])
def test_any_rate_gives_the_exact_length_and_place(tmp_path: Path, rate_hz: int, n_samples: int) -> None:
    samples = np.zeros((1, n_samples), np.int16)
    samples[0, n_samples // 2] = 30000
    units = cut_audio(wav(tmp_path / "a", samples, rate_hz), tmp_path, CutPolicy())
    found = np.concatenate([decode_sound(unit, "flac") for unit in units])
    assert len(found) == round(Fraction(n_samples * 16000, rate_hz))
    assert abs(int(np.abs(found).argmax()) - n_samples // 2 * 16000 / rate_hz) <= 1


def test_channels_that_are_loud_together_do_not_clip(tmp_path: Path) -> None:
    tone = (30000 * np.sin(np.arange(16000) / 7)).astype(np.int16)
    for channels in (2, 6):
        (unit,) = cut_audio(wav(tmp_path / "a", np.tile(tone, (channels, 1)), 16000), tmp_path, CutPolicy())
        found = decode_sound(unit, "flac")
        assert np.abs(found).max() <= 30001
        assert np.corrcoef(found, tone)[0, 1] > 0.999  # not cut off, not folded


def with_hole(path: Path, samples: np.ndarray, hole: int, *, at: int = 8000) -> str:
    """Matroska whose sound has `hole` samples missing (or, negative, told twice) in its timestamps."""
    with av.open(str(path), "w", format="matroska") as out:
        stream = out.add_stream("pcm_s16le", rate=16000, layout="mono")
        for start in range(0, len(samples), 800):
            frame = av.AudioFrame.from_ndarray(
                samples[None, start : start + 800], format="s16", layout="mono"
            )
            frame.sample_rate, frame.time_base = 16000, Fraction(1, 16000)
            frame.pts = start + (hole if start >= at else 0)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return str(path)


def test_gap_becomes_silence_and_an_overlap_is_dropped(tmp_path: Path) -> None:
    tone = (8000 * np.sin(np.arange(16000) / 5) + 9000).astype(np.int16)
    (unit,) = cut_audio(with_hole(tmp_path / "a", tone, 4000), tmp_path, CutPolicy())
    found = decode_sound(unit, "flac")
    assert np.array_equal(found, np.concatenate([tone[:8000], np.zeros(4000, int), tone[8000:]]))
    assert unit.fields["json"]["n_filled"] == 4000
    (unit,) = cut_audio(with_hole(tmp_path / "b", tone, -400), tmp_path, CutPolicy())
    assert np.array_equal(decode_sound(unit, "flac"), np.concatenate([tone[:7600], tone[8000:]]))
    assert (unit.fields["json"]["n_overlapping"], unit.fields["json"]["n_filled"]) == (400, 0)


def test_rounded_timestamps_are_no_gaps(tmp_path: Path) -> None:
    tone = (8000 * np.sin(np.arange(44100) / 5)).astype(np.int16)
    path = tmp_path / "a"
    with av.open(str(path), "w", format="matroska") as out:  # counts in ms: 1152 samples are 26.12 of them
        stream = out.add_stream("pcm_s16le", rate=44100, layout="mono")
        for start in range(0, len(tone), 1152):
            frame = av.AudioFrame.from_ndarray(tone[None, start : start + 1152], format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 44100, start, Fraction(1, 44100)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with open_container(str(path)) as container:
        timeline = AudioTimeline(container, require_audio(container), 44100)
        assert np.array_equal(np.concatenate(list(timeline), axis=1) * 2**15, tone[None])
        heard = timeline.heard
        assert (heard.n_filled, heard.n_overlapping, heard.n_padding) == (0, 0, 0)


def test_more_holes_than_sound_is_refused(tmp_path: Path) -> None:
    tone = np.full(16000, 1000, np.int16)
    with pytest.raises(Unusable) as refused:
        cut_audio(with_hole(tmp_path / "a", tone, 20000), tmp_path, CutPolicy())
    assert refused.value.code == "gaps"
    with refusal(Unusable, what="timestamps", given=4000, accepted=3600):
        cut_audio(with_hole(tmp_path / "b", tone, 16000 * 4000), tmp_path, CutPolicy())


def test_pieces_lie_where_their_spans_say(tmp_path: Path) -> None:
    count = np.arange(32000, dtype=np.int16)
    path = wav(tmp_path / "a", count[None], 16000)
    tenth = Fraction(1, 10)
    spans = [
        (-tenth, tenth),
        (3 * tenth, 5 * tenth),
        (4 * tenth, 6 * tenth),  # overlaps
        (19 * tenth, 21 * tenth),
        (Fraction(3), Fraction(4)),
    ]
    with open_container(path) as container:
        timeline = AudioTimeline(container, require_audio(container), 16000)
        found = [(samples[0] * 2**15, n_real) for samples, n_real in read_pieces(timeline, spans, 16000)]
    before, inside, across, behind, outside = found
    assert before[1] == 1600
    assert np.array_equal(before[0], [*[0] * 1600, *count[:1600]])
    assert inside[1] == 3200
    assert np.array_equal(inside[0], count[4800:8000])
    assert np.array_equal(across[0], count[6400:9600])
    assert behind[1] == 1600
    assert np.array_equal(behind[0], [*count[30400:], *[0] * 1600])
    assert (outside[1], len(outside[0]), int(outside[0].any())) == (0, 16000, 0)


def test_pieces_of_sound_that_begins_late(tmp_path: Path) -> None:
    count = np.arange(1, 16001, dtype=np.int16)
    path = with_hole(tmp_path / "a", count, 4800, at=0)  # begins at 0.3 s
    with open_container(path) as container:
        timeline = AudioTimeline(container, require_audio(container), 16000)
        ((found, n_real),) = read_pieces(timeline, [(Fraction(1, 5), Fraction(1, 2))], 16000)
    assert n_real == 3200
    assert np.array_equal(found[0] * 2**15, [*[0] * 1600, *count[:3200]])


def test_clip_says_what_became_of_its_channels(
    tmp_path: Path, encode_video: EncodeVideo, numbered_frames: MakeFrames, sound_file: Callable[..., str]
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (6, 32_000))
    silent = encode_video(numbered_frames(50))
    surround = sound_file(noise, 16_000, codec="flac", container="flac")
    muxed = tmp_path / "both.mkv"
    with av.open(silent) as picture, av.open(surround) as sound, av.open(str(muxed), "w") as out:
        streams = [picture.streams.video[0], sound.streams.audio[0]]
        for source, target in [(one, out.add_stream_from_template(one)) for one in streams]:
            for packet in source.container.demux(source):
                if packet.dts is not None:
                    packet.stream = target
                    out.mux(packet)
    (first, _) = cut_video(str(muxed), tmp_path, POLICY)
    assert (first.metadata["sound_downmix"], first.metadata["mono_cancels"]) == ("5.1 to mono", None)
    assert first.metadata["sound_gain_db"] == 0
    weights = np.array([0.5**0.5, 0.5**0.5, 1, 0, 0.5, 0.5]) / (2 + 2 * 0.5**0.5)
    assert np.abs(decode_sound(first) / 2**15 - weights @ noise[:, :16_000]).max() < 1e-4


def test_pieces_come_as_soon_as_they_are_complete(tmp_path: Path) -> None:
    path = wav(tmp_path / "a", np.zeros((1, 16000 * 60), np.int16), 16000)
    with open_container(path) as container:
        timeline = AudioTimeline(container, require_audio(container), 16000)
        pieces = read_pieces(timeline, [(Fraction(n), Fraction(n + 1)) for n in range(60)], 16000)
        next(pieces)
        assert timeline.heard.n_source < 16000 * 12  # a block, and not the whole file
        assert sum(1 for _ in pieces) == 59
