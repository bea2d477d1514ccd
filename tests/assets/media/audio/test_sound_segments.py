"""Segments by energy: known pauses are found, nothing is lost without being told, steady sound stays whole."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.audio.cut import (
    LevelMeter,
    SegmentLimits,
    audible_segments,
    audible_spans,
    complement,
    cut_audio,
    split_span,
)
from assets.media.cutters import Known
from assets.media.policy import AudioPolicy, CutPolicy
from assets.media.segments import Segment
from assets.media.unit import Unit, Unusable
from loader.modalities import find_decoder
from tests.refusals import refusal

SoundFile = Callable[..., str]
RATE_HZ = 16_000
POLICY = AudioPolicy(segments="energy", segment_s=10.0, pause_s=0.4, padding_s=0.1)


def synthetic_speech(
    *stretches: tuple[float, float], total_s: float, noise_db: float = -60.0, seed: int = 0
) -> np.ndarray:
    """float32 [n]: bursts like syllables at about -20 dBFS within each (start_s, end_s), noise everywhere."""
    rng = np.random.default_rng(seed)
    n = round(total_s * RATE_HZ)
    sound = rng.normal(0, 10 ** (noise_db / 20), n)
    times = np.arange(n) / RATE_HZ
    for start, end in stretches:
        inside = (times >= start) & (times < end)
        syllables = 0.35 + 0.65 * np.square(np.sin(np.pi * 4 * (times - start)))  # never silent within
        sound += inside * syllables * 0.2 * np.sin(2 * np.pi * 180 * times)
    return sound.astype(np.float32)


def spans(sound: np.ndarray, policy: AudioPolicy = POLICY) -> list[tuple[float, float]]:
    meter = LevelMeter(RATE_HZ)
    for start in range(0, len(sound), 7_001):
        meter.add(sound[None, start : start + 7_001])
    found = audible_segments(meter.finish(), meter.frame, len(sound), policy)
    return [(start / RATE_HZ, end / RATE_HZ) for start, end in found]


@pytest.mark.parametrize("noise_db", [-120.0, -60.0, -45.0])
def test_stretches_between_pauses_are_found(noise_db: float) -> None:
    sound = synthetic_speech((1.0, 3.0), (3.2, 4.0), (6.0, 8.5), total_s=12.0, noise_db=noise_db)
    found = spans(sound)
    assert len(found) == 2  # 0.2 s is not a pause
    for (start, end), (begins, ends) in zip(found, [(1.0, 4.0), (6.0, 8.5)], strict=True):
        assert start == pytest.approx(begins - 0.1, abs=0.03)
        assert end == pytest.approx(ends + 0.1, abs=0.06)


def test_word_in_minutes_is_found() -> None:
    ((start, end),) = spans(synthetic_speech((60.0, 61.0), total_s=150.0, noise_db=-50.0))
    assert (start, end) == (pytest.approx(59.9, abs=0.03), pytest.approx(61.1, abs=0.06))


def test_background_that_changes_is_followed() -> None:
    quiet = synthetic_speech((2.0, 4.0), (20.0, 22.0), total_s=60.0, noise_db=-70.0)
    loud = synthetic_speech((62.0, 64.0), (90.0, 92.0), total_s=120.0, noise_db=-42.0)[60 * RATE_HZ :]
    starts = [round(start + 0.1) for start, _ in spans(np.concatenate([quiet, loud]))]
    assert starts[:2] == [2, 20]
    assert starts[-1] == 90
    assert all(60 <= start < 75 for start in starts[2:-1])  # until it is known to be background


def test_what_fades_ends_later_than_what_is_as_faint_begins() -> None:
    """Levels of frames: background -60, then loud, then for a second 8 dB above the background."""
    rng = np.random.default_rng(0)
    levels = rng.normal(-60, 0.3, 1000).astype(np.float32)
    levels[200:250], levels[250:300], levels[600:650] = -20, -52, -52
    found = audible_spans(levels, replace(LIMITS, padding=0, longest=1000))
    assert found == [(200, 300)]


@pytest.mark.parametrize("kind", ["noise", "tone", "music"])
def test_steady_sound_is_kept_whole(kind: str) -> None:
    times = np.arange(20 * RATE_HZ) / RATE_HZ
    rng = np.random.default_rng(1)
    sound = {
        "noise": rng.normal(0, 0.05, len(times)),
        "tone": 0.2 * np.sin(2 * np.pi * 440 * times),
        "music": 0.2 * np.sin(2 * np.pi * 220 * times) * (0.6 + 0.4 * np.cos(2 * np.pi * 2 * times)),
    }[kind]
    found = spans(sound.astype(np.float32))
    assert found[0][0] == 0
    assert found[-1][1] == 20.0
    assert all(one[1] == other[0] for one, other in pairwise(found))


def test_clicks_are_no_sound_and_silence_is_dropped(tmp_path: Path, sound_file: SoundFile) -> None:
    sound = synthetic_speech((4.0, 6.0), total_s=10.0)
    sound[1 * RATE_HZ : 1 * RATE_HZ + 200] += 0.5
    assert len(spans(sound)) == 1
    assert len(spans(sound, AudioPolicy(segments="energy", min_sound_s=0.0))) == 2
    with refusal(Unusable, what="silent") as refused:
        cut_audio(sound_file(np.zeros(RATE_HZ), RATE_HZ), tmp_path, CutPolicy(audio=POLICY))
    assert (refused.value.outcome, refused.value.code) == ("dropped", "silent")


def test_long_stretch_is_divided_at_its_quietest_place() -> None:
    sound = synthetic_speech((0.0, 14.0), total_s=14.0)
    sound[round(7.3 * RATE_HZ) : round(7.36 * RATE_HZ)] *= 0.3
    found = spans(sound)
    assert [end == pytest.approx(7.33, abs=0.03) for _, end in found] == [True, False]
    assert all(end - start <= 10.0 for start, end in found)
    assert found[0][1] == found[1][0]


LIMITS = SegmentLimits(longest=100, pause=20, padding=5, shortest=4, tail=12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 300), st.floats(-100, 0)), max_size=12), st.integers(0, 2**32 - 1))
def test_spans_are_in_order_apart_and_no_longer_than_allowed(
    steps: list[tuple[int, float]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    levels = np.concatenate([np.zeros(0), *(rng.normal(db, 3, n) for n, db in steps)]).astype(np.float32)
    found = audible_spans(levels, LIMITS)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(edges)
    assert all(0 < end - start <= LIMITS.longest for start, end in found)
    assert all(0 <= edge <= len(levels) for edge in edges)
    left_out = complement(found, len(levels))
    assert sorted([*found, *left_out]) == [
        (start, end) for start, end in sorted([*found, *left_out]) if start < end
    ]
    assert sum(end - start for start, end in [*found, *left_out]) == len(levels)


@pytest.mark.parametrize("length", [101, 111, 112, 113, 200, 250, 1000])
def test_pieces_are_neither_too_long_nor_too_short(length: int) -> None:
    levels = np.random.default_rng(length).normal(-30, 5, length + 50).astype(np.float32)
    pieces = split_span(levels, (20, 20 + length), LIMITS)
    assert (pieces[0][0], pieces[-1][1]) == (20, 20 + length)
    assert all(LIMITS.tail <= end - start <= LIMITS.longest for start, end in pieces)


def decode_channel(unit: Unit) -> np.ndarray:
    """float32 [n] of one channel, as stored."""
    stored: np.ndarray = find_decoder("flac")(Path(unit.fields["flac"]).read_bytes(), None)  # type: ignore[assignment]
    return stored[0]


def cut(path: str, folder: Path, policy: AudioPolicy) -> list[Unit]:
    return cut_audio(path, folder, CutPolicy(audio=policy))


def test_what_is_left_out_is_told(tmp_path: Path, sound_file: SoundFile) -> None:
    sound = synthetic_speech((1.0, 3.0), (6.0, 8.5), total_s=12.0)
    path = sound_file(sound, RATE_HZ, codec="pcm_s16le")
    units = cut(path, tmp_path, POLICY)
    whole, rebuilt = find_decoder("wav")(Path(path).read_bytes(), None), np.full(len(sound), np.nan)
    for unit in units:
        start = int(unit.start.split("@")[0])
        stored = decode_channel(unit)
        rebuilt[start : start + len(stored)] = stored
        for low, high in unit.fields["json"]["left_out"]:
            assert np.isnan(rebuilt[low:high]).all()
            rebuilt[low:high] = whole[0, low:high]  # type: ignore[index]
    assert np.array_equal(rebuilt, whole[0])  # type: ignore[index]
    fixed = cut(path, tmp_path, AudioPolicy())
    assert [unit.fields["json"]["left_out"] for unit in fixed] == [[]] * len(fixed)


def segment(start_s: float, end_s: float, **more: str) -> Segment:
    return Segment(start_s=start_s, end_s=end_s, **more)


GIVEN = CutPolicy(audio=AudioPolicy(segments="given"))


def test_given_segments_are_cut_as_they_are_given(tmp_path: Path, sound_file: SoundFile) -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 5 * 44_100)
    path = sound_file(sound, 44_100)
    segments = (segment(0.5, 2.0, label="a", caption="ein Satz"), segment(1.25, 1.75), segment(3.0, 5.4))
    units = cut_audio(path, tmp_path, GIVEN, Known(segments=segments))
    assert [(unit.start, unit.end) for unit in units] == [
        ("8000@1/16000", "32000@1/16000"),
        ("20000@1/16000", "28000@1/16000"),
        ("48000@1/16000", "80000@1/16000"),  # as far as there is something
    ]
    (whole_folder := tmp_path / "whole").mkdir()
    whole = np.concatenate(
        [decode_channel(unit) for unit in cut(path, whole_folder, AudioPolicy(segment_s=60))]
    )
    for unit in units:
        low, high = (int(place.split("@")[0]) for place in (unit.start, unit.end))
        assert np.array_equal(decode_channel(unit), whole[low:high])
    first, second, third = units
    assert (first.metadata["label"], first.fields["caption.txt"]) == ("a", "ein Satz")
    assert "label" not in second.metadata
    assert [unit.fields["json"]["left_out"] for unit in units] == [[(0, 8000)], [], [(32000, 48000)]]
    assert len({unit.request for unit in units}) == 3
    assert third.fields["json"]["segment"]["end_s"] == 5.4


@pytest.mark.parametrize(
    ("segments", "outcome", "code"),
    [
        ((), "dropped", "no_segments"),
        ((segment(1.0, 1.5), segment(2.0, 3.0)), "rejected", "segment"),
        ((segment(0.5, 3.5),), "rejected", "segment"),
    ],
)
def test_segments_outside_of_the_sound_are_refused(
    tmp_path: Path, sound_file: SoundFile, segments: tuple[Segment, ...], outcome: str, code: str
) -> None:
    path = sound_file(np.full(2 * RATE_HZ, 0.1), RATE_HZ)
    with pytest.raises(Unusable) as refused:
        cut_audio(path, tmp_path, GIVEN, Known(segments=segments))
    assert (refused.value.outcome, refused.value.code) == (outcome, code)


@pytest.mark.server
def test_pauses_of_a_known_speech() -> None:
    """John F. Kennedy, 1961: "And so, my fellow Americans, | ask not | what your country can do for you; | ask what
    you can do for your country.\""""
    folder = os.environ.get("PENSTOCK_MEDIA")
    if not folder:
        return
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        units = cut(str(Path(folder, "audio/jfk.flac")), Path(scratch), POLICY)
        found = [(unit.metadata["start_s"], unit.metadata["duration_s"]) for unit in units]
    starts = [start for start, _ in found]
    assert starts == pytest.approx([0.2, 3.2, 5.3, 8.1], abs=0.15)
