"""Bugs planted into the cutting of sound: each is found, under its own name, and honest sound passes."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.audio import cut as speech
from assets.media.clips import cut as clip_cut
from assets.media.cut_audit import findings
from assets.media.cut_audit.audio import check_alignment
from assets.media.unit import Unusable

EncodeVideo = Callable[..., str]
RefusedAs = Callable[..., str]
RATE_HZ = 16_000


def hiss(n_samples: int, seed: int, level: int = 6000) -> np.ndarray:
    """Noise that swells and falls: no two places are alike. int16 [n]."""
    rng = np.random.default_rng(seed)
    swell = 0.6 + 0.4 * np.sin(np.arange(n_samples) * 2 * np.pi / 9000)
    smooth = np.convolve(rng.standard_normal(n_samples), np.ones(8) / 8, "same")
    return (smooth * swell * level).clip(-32767, 32767).astype(np.int16)


def wav(path: Path, channels: np.ndarray, rate_hz: int = RATE_HZ) -> str:
    """int16 [channels, samples]."""
    with av.open(str(path), "w", format="wav") as out:
        layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
        stream = out.add_stream("pcm_s16le", rate=rate_hz, layout=layout)
        packed = np.ascontiguousarray(channels.T.reshape(1, -1))
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
        frame.sample_rate, frame.pts = rate_hz, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return str(path)


@pytest.mark.parametrize("rate_hz", [8000, 12000, 16000, 44100, 48000, 192000])
@pytest.mark.parametrize("n_channels", [1, 2, 6])
def test_honest_sound_passes(tmp_path: Path, refusal_code: RefusedAs, rate_hz: int, n_channels: int) -> None:
    channels = np.stack([hiss(2 * rate_hz, seed) for seed in range(n_channels)])
    assert refusal_code(wav(tmp_path / "in.wav", channels, rate_hz)) == ""


@pytest.fixture
def clip_with_sound(encode_video: EncodeVideo) -> Callable[..., str]:
    def make(codec: str = "flac") -> str:
        frames = [np.full((64, 96, 3), 40 + 2 * number, np.uint8) for number in range(75)]
        return encode_video(frames, sound=(hiss(3 * RATE_HZ, 1), RATE_HZ, codec))

    return make


@pytest.mark.parametrize("codec", ["flac", "aac", "alac"])
def test_sound_of_honest_clips_passes(
    clip_with_sound: Callable[..., str], refusal_code: RefusedAs, codec: str
) -> None:
    assert refusal_code(clip_with_sound(codec)) == ""


@pytest.mark.parametrize("late", [-RATE_HZ, -1024, -32, 32, 1024, RATE_HZ])
def test_sound_out_of_sync(
    clip_with_sound: Callable[..., str], refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """1024: the priming of AAC, taken for sound; 32: two milliseconds."""
    really = clip_cut.read_pieces

    def shift_spans(timeline: Any, spans: Any, rate_hz: int, *rest: Any) -> Any:
        by = Fraction(late, rate_hz)
        return really(timeline, [(start - by, end - by) for start, end in spans], rate_hz, *rest)

    monkeypatch.setattr(clip_cut, "read_pieces", shift_spans)
    assert refusal_code(clip_with_sound()) == findings.SOUND_OFFSET


@pytest.mark.parametrize("wrong", [0.5, 0.99, 1.01, 2.0])
def test_sound_of_another_length(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Another rate in the header than the samples have, too."""
    really = speech.write_flac

    def resize_samples(path: Path, samples: np.ndarray, *rest: Any, **how: Any) -> None:
        wanted = (*samples.shape[:-1], round(samples.shape[-1] * wrong))
        really(path, np.resize(samples, wanted), *rest, **how)

    monkeypatch.setattr(speech, "write_flac", resize_samples)
    assert refusal_code(wav(tmp_path / "in.wav", hiss(RATE_HZ, 1)[None])) == findings.SOUND_LENGTH


def spoilt(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    """wrong: what becomes of the samples, in 16 bits."""
    really = speech.write_flac

    def write(path: Path, samples: np.ndarray, *rest: Any, **how: Any) -> None:
        whole = np.rint(samples * 2.0**15).astype(np.int64)
        really(path, (wrong(whole).clip(-32768, 32767) / 2.0**15).astype(np.float32), *rest, **how)

    monkeypatch.setattr(speech, "write_flac", write)


def test_mix_that_clips(tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wav(tmp_path / "in.wav", np.stack([hiss(RATE_HZ, 1, 20000)] * 2))
    assert refusal_code(path) == ""
    spoilt(monkeypatch, lambda samples: 3 * samples)
    assert refusal_code(path) == findings.SOUND_CLIPPED


def test_other_sound(tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wav(tmp_path / "in.wav", hiss(RATE_HZ, 1)[None])
    spoilt(monkeypatch, lambda samples: hiss(samples.shape[-1], 99).reshape(samples.shape))
    assert refusal_code(path) == findings.SOUND_DIFFERS


def test_silence_instead_of_sound(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wav(tmp_path / "in.wav", hiss(RATE_HZ, 1)[None])
    spoilt(monkeypatch, lambda samples: 0 * samples)
    assert refusal_code(path) == findings.SOUND_DIFFERS


def at_dbfs(sound: np.ndarray, dbfs: float) -> np.ndarray:
    """int16 [n] of that level."""
    level = np.sqrt(np.square(sound.astype(float)).mean()) / 2**15
    return np.rint(sound * (10 ** (dbfs / 20) / level)).astype(np.int16)


@pytest.mark.parametrize(
    ("n_channels", "loud", "dbfs"), [(2, (0, 1), -59), (2, (0,), -56), (2, (1,), -57), (6, (2,), -55)]
)
def test_sound_that_is_quiet_in_the_mix_alone_passes(
    tmp_path: Path, refusal_code: RefusedAs, n_channels: int, loud: tuple[int, ...], dbfs: float
) -> None:
    """A quiet room: each channel is above the level of silence, what they are mixed to is not."""
    channels = np.zeros((n_channels, 2 * RATE_HZ), np.int16)
    for number in loud:
        channels[number] = at_dbfs(hiss(2 * RATE_HZ, number), dbfs)
    assert refusal_code(wav(tmp_path / "in.wav", channels)) == ""


def test_channels_that_cancel_for_a_while_pass(tmp_path: Path, refusal_code: RefusedAs) -> None:
    """The second of three segments; the whole sound does not cancel."""
    left = hiss(15 * RATE_HZ, 1)
    right = left.copy()
    right[5 * RATE_HZ : 10 * RATE_HZ] *= -1
    assert refusal_code(wav(tmp_path / "in.wav", np.stack([left, right]))) == ""


def test_silence_instead_of_quiet_sound(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wav(tmp_path / "in.wav", np.stack([at_dbfs(hiss(2 * RATE_HZ, seed), -59) for seed in range(2)]))
    spoilt(monkeypatch, lambda samples: 0 * samples)
    assert refusal_code(path) == findings.SOUND_DIFFERS


@pytest.mark.parametrize("lost", [0, 2, 5])
def test_missing_channel_is_found(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Folding 5.1 to its front pair loses the voices of the centre, and the surround."""
    channels = np.stack([hiss(2 * RATE_HZ, seed) for seed in range(6)])
    path = wav(tmp_path / "in.wav", channels)
    kept = [number for number in range(6) if number not in (lost, 3)]
    mix = channels[kept].astype(np.int64).sum(axis=0) // 6
    spoilt(monkeypatch, lambda samples: np.resize(mix[: samples.shape[-1]], samples.shape))
    assert refusal_code(path) == findings.CHANNEL_LOST


def alignment_code(mixed: np.ndarray, channels: np.ndarray, late: int = 0) -> str:
    margin = 24_000
    around = np.pad(channels.astype(float), ((0, 0), (margin, margin)))
    try:
        check_alignment(np.roll(mixed.astype(float), late) / 32768, around / 32768, RATE_HZ)
    except Unusable as unusable:
        return unusable.code
    return ""


@pytest.mark.parametrize("late", [-16, -8, 0, 8, 16])
def test_millisecond_is_allowed(late: int) -> None:
    sound = hiss(RATE_HZ, 3)
    assert alignment_code(sound, sound[None], late) == ""


@pytest.mark.parametrize("late", [-17, 18, 160])
def test_more_is_not(late: int) -> None:
    sound = hiss(RATE_HZ, 3)
    assert alignment_code(sound, sound[None], late) == findings.SOUND_OFFSET


def test_tone_is_the_same_a_period_later() -> None:
    tone = 8000 * np.sin(np.arange(RATE_HZ) * 2 * np.pi * 100 / RATE_HZ)
    assert alignment_code(tone, tone[None], 160) == ""


def test_equal_channels_share(tmp_path: Path) -> None:
    sound = hiss(RATE_HZ, 3)
    assert alignment_code(sound, np.stack([sound, sound])) == ""
