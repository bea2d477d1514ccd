"""Sound whose timestamps jitter, as recorders and streams leave it in Matroska: it passes, and what was planted does
not."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.audio import cut as speech
from assets.media.cut_audit import findings

RefusedAs = Callable[..., str]
RATE_HZ, BLOCK, N_BLOCKS = 48_000, 960, 200
"""Blocks of 20 ms, 4 s in all."""

DRAWN = np.random.default_rng(5)
JITTER_8_MS = DRAWN.integers(-8, 9, N_BLOCKS)
UNEVEN = {
    "a jitter of 8 ms": JITTER_8_MS,
    "late by up to 8 ms": np.abs(JITTER_8_MS),
    "five packets at almost one time": -19 * (np.arange(N_BLOCKS) % 5),
    "ascending at random": np.round(np.sort(DRAWN.uniform(0, 4000, N_BLOCKS)) - 20 * np.arange(N_BLOCKS)),
    "a clock that wanders": np.cumsum(DRAWN.integers(-6, 7, N_BLOCKS)),
    "a clock that is too slow": np.round(np.arange(N_BLOCKS) * 0.2),
    "a gap of 150 ms": 150 * (np.arange(N_BLOCKS) >= 70),
}


def swelling(n_samples: int, seed: int = 0) -> np.ndarray:
    """Noise that swells and falls. int16 [n]."""
    rng = np.random.default_rng(seed)
    swell = 0.6 + 0.4 * np.sin(np.arange(n_samples) * 2 * np.pi / 9000)
    smooth = np.convolve(rng.standard_normal(n_samples), np.ones(8) / 8, "same")
    return (smooth * swell * 9000).clip(-32767, 32767).astype(np.int16)


def write_timed_audio(path: Path, offsets_ms: Sequence[float]) -> str:
    """A Matroska of PCM whose block n is said to be heard at n * 20 ms and its offset."""
    sound = swelling(len(offsets_ms) * BLOCK)
    with av.open(str(path), "w", format="matroska") as out:
        stream = out.add_stream("pcm_s16le", rate=RATE_HZ, layout="mono")
        for number, offset_ms in enumerate(offsets_ms):
            block = sound[None, number * BLOCK : (number + 1) * BLOCK]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block), format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, number * BLOCK, Fraction(1, RATE_HZ)
            for packet in stream.encode(frame):
                assert packet.pts is not None
                assert packet.time_base is not None
                packet.pts += round(Fraction(int(offset_ms), 1000) / packet.time_base)
                packet.dts = packet.pts
                out.mux(packet)
        out.mux(stream.encode(None))
    return str(path)


@pytest.mark.parametrize("how", UNEVEN)
def test_uneven_timestamps_pass(tmp_path: Path, refusal_code: RefusedAs, how: str) -> None:
    assert refusal_code(write_timed_audio(tmp_path / "in.mka", UNEVEN[how])) == ""


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    really = speech.write_flac

    def write(path: Path, samples: np.ndarray, *rest: Any, **how: Any) -> None:
        really(path, wrong(np.array(samples)), *rest, **how)

    monkeypatch.setattr(speech, "write_flac", write)


def _other(samples: np.ndarray) -> np.ndarray:
    return np.resize(swelling(samples.shape[-1], 99) / np.float32(2**15), samples.shape).astype(np.float32)


@pytest.mark.parametrize("how", ["a jitter of 8 ms", "ascending at random", "a gap of 150 ms"])
@pytest.mark.parametrize(
    "wrong",
    [_other, lambda samples: 0 * samples, lambda samples: np.roll(samples, 16_000, axis=-1)],
    ids=["other sound", "silence", "a second off"],
)
def test_wrong_sound_of_uneven_timestamps_is_found(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, how: str, wrong: Any
) -> None:
    spoil(monkeypatch, wrong)
    assert refusal_code(write_timed_audio(tmp_path / "in.mka", UNEVEN[how])) in (
        findings.SOUND_DIFFERS,
        findings.SOUND_OFFSET,
    )


@pytest.mark.parametrize(("how", "late_ms"), [("a jitter of 8 ms", 60), ("a gap of 150 ms", 10)])
def test_sound_that_is_further_off_than_its_timestamps_jitter(
    tmp_path: Path, refusal_code: RefusedAs, monkeypatch: pytest.MonkeyPatch, how: str, late_ms: int
) -> None:
    spoil(monkeypatch, lambda samples: np.roll(samples, 16 * late_ms, axis=-1))
    assert refusal_code(write_timed_audio(tmp_path / "in.mka", UNEVEN[how])) in (
        findings.SOUND_DIFFERS,
        findings.SOUND_OFFSET,
    )
