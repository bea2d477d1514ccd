"""What the audit says of sounds: loudness and peaks by EBU Tech 3341 and 3342, silence, clipping, what cancels."""

import os
import re
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from assets.media.audio.audit import audit_audio
from assets.media.audio.decode import LoudnessMeter, Unmeasurable
from assets.media.container import demux_packets
from assets.media.unit import Unusable
from tests.refusals import refusal

SoundFile = Callable[..., str]
RATE_HZ = 48_000
STEREO = ("FL", "FR"), "stereo"


def tone(*steps: tuple[float, float], hz: float = 1000.0, rate_hz: int = RATE_HZ) -> np.ndarray:
    """float32 [n]: a sine whose peak lies at so many dBFS for so many seconds, step after step."""
    level = np.concatenate([np.full(round(s * rate_hz), 10 ** (db / 20)) for db, s in steps])
    return (level * np.sin(2 * np.pi * hz * np.arange(len(level)) / rate_hz)).astype(np.float32)


def measure_loudness(
    samples: np.ndarray, channels: tuple[str, ...] = STEREO[0], layout: str = STEREO[1]
) -> LoudnessMeter:
    meter = LoudnessMeter(RATE_HZ, channels, layout)
    for start in range(0, samples.shape[1], 50_000):
        meter.add(samples[:, start : start + 50_000])
    meter.finish()
    return meter


# EBU Tech 3341, table 1, cases 1 to 5: a stereo sine of 1 kHz; LUFS, to 0.1. Steps of a third of the length.
LOUDNESS = [
    ([(-23.0, 6)], -23.0),
    ([(-33.0, 6)], -33.0),
    ([(-36.0, 3), (-23.0, 20), (-36.0, 3)], -23.0),
    ([(-72.0, 3), (-36.0, 3), (-23.0, 20), (-36.0, 3), (-72.0, 3)], -23.0),
    ([(-26.0, 7), (-20.0, 7.1), (-26.0, 7)], -23.0),
]


@pytest.mark.parametrize(("steps", "lufs"), LOUDNESS)
def test_loudness_of_ebu_tech_3341(steps: list[tuple[float, float]], lufs: float) -> None:
    assert measure_loudness(np.tile(tone(*steps), (2, 1))).loudness_lufs == pytest.approx(lufs, abs=0.1)


def test_loudness_of_five_channels_of_ebu_tech_3341() -> None:
    levels = (-28.0, -28.0, -24.0, -30.0, -30.0)
    five = np.stack([tone((level, 6)) for level in levels])
    meter = measure_loudness(five, ("FL", "FR", "FC", "SL", "SR"), "5.0(side)")
    assert meter.loudness_lufs == pytest.approx(-23.0, abs=0.1)


# EBU Tech 3342, table 1: a stereo sine of 1 kHz; LU, to 1.
RANGE = [
    ([(-20.0, 20), (-30.0, 20)], 10),
    ([(-20.0, 20), (-15.0, 20)], 5),
    ([(-40.0, 20), (-20.0, 20)], 20),
    ([(-50.0, 20), (-35.0, 20), (-20.0, 20), (-35.0, 20), (-50.0, 20)], 15),
]


@pytest.mark.parametrize(("steps", "lu"), RANGE)
def test_loudness_range_of_ebu_tech_3342(steps: list[tuple[float, float]], lu: float) -> None:
    assert measure_loudness(np.tile(tone(*steps), (2, 1))).range_lu == pytest.approx(lu, abs=1)


# EBU Tech 3341, table 2, cases 15 to 19: share of the sampling rate, phase, amplitude; dBTP, to +0.2 and -0.4.
PEAKS = [
    (4, 0.0, 0.5, -6.0),
    (4, 45.0, 0.5, -6.0),
    (6, 60.0, 0.5, -6.0),
    (8, 67.5, 0.5, -6.0),
    (4, 45.0, 1.41, 3.0),
]


@pytest.mark.parametrize(("share", "phase_deg", "amplitude", "dbtp"), PEAKS)
@pytest.mark.parametrize("level_db", [0, -50])
def test_true_peak_of_ebu_tech_3341(
    share: int, phase_deg: float, amplitude: float, dbtp: float, level_db: int
) -> None:
    n = np.arange(RATE_HZ)
    sine = amplitude * np.sin(2 * np.pi * n / share + np.deg2rad(phase_deg)) * 10 ** (level_db / 20)
    ramp = np.minimum(1, np.minimum(n, n[::-1]) / 500)  # an abrupt beginning is a peak of its own
    found = measure_loudness(np.tile((sine * ramp).astype(np.float32), (2, 1))).true_peak_dbtp
    assert found is not None
    assert -0.4 <= found - dbtp - level_db <= 0.2


def test_peak_at_the_very_end_counts_and_none_is_below_the_largest_sample() -> None:
    click = np.zeros((2, 49_999), np.float32)
    click[0, -1] = 0.5
    found = measure_loudness(click).true_peak_dbtp
    assert found is not None
    assert found >= -6.03


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 96_000, 192_000])
def test_every_rate_is_measured_alike(sound_file: SoundFile, rate_hz: int) -> None:
    row = audit_audio(sound_file(tone((-23.0, 3), rate_hz=rate_hz, hz=997), rate_hz))
    assert row["loudness_lufs"] == pytest.approx(-26.0, abs=0.1)  # one channel: 3.01 LU less than on two
    assert row["true_peak_dbtp"] == pytest.approx(-23.0, abs=0.3)


def test_what_cannot_be_measured_is_null(sound_file: SoundFile) -> None:
    with refusal(Unmeasurable, what="rate", given=2_000, accepted=[4_000, 768_000]):
        LoudnessMeter(2_000, *STEREO)
    silent = audit_audio(sound_file(np.zeros((2, RATE_HZ))))
    assert (silent["loudness_lufs"], silent["loudness_range_lu"], silent["true_peak_dbtp"]) == (None,) * 3
    assert (silent["silence_ratio"], silent["mono_sum_db"], silent["mono_cancels"]) == (1.0, None, None)
    short = audit_audio(sound_file(tone((-6.0, 0.05))))
    assert short["loudness_lufs"] is None
    assert short["true_peak_dbtp"] == pytest.approx(-6.0, abs=0.3)


@pytest.mark.parametrize(
    ("share", "db", "cancels"),
    [(1.0, 0.0, False), (0.0, -3.0, False), (-0.4, -8.1, False), (-1.0, -200.0, True)],
)
def test_two_channels_that_cancel_are_told(
    sound_file: SoundFile, share: float, db: float, cancels: bool
) -> None:
    """The right channel holds `share` of the left one, or of nothing it has in common an equal amount."""
    rng = np.random.default_rng(0)
    left = rng.normal(0, 0.1, RATE_HZ)
    right = share * left if share else rng.normal(0, 0.1, RATE_HZ)
    row = audit_audio(sound_file(np.stack([left, right])))
    assert row["mono_sum_db"] == pytest.approx(db, abs=0.1)
    assert row["mono_cancels"] is cancels
    assert audit_audio(sound_file(left))["mono_cancels"] is None


def test_clipping_and_silence(sound_file: SoundFile) -> None:
    loud = np.clip(3 * np.sin(np.arange(RATE_HZ) / 20), -1, 1)
    row = audit_audio(sound_file(np.concatenate([loud, np.zeros(RATE_HZ)]), codec="pcm_s16le"))
    assert row["clipped_ratio"] == pytest.approx((np.abs(loud) >= 1).mean() / 2, abs=0.01)
    assert row["silence_ratio"] == 0.5


def test_gaps_overlaps_and_padding_are_counted(tmp_path: Path, sound_file: SoundFile) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 30_000)
    row = audit_audio(sound_file(noise, codec="aac", container="mp4"))
    assert (row["n_samples"] - row["n_padding_samples"], row["n_gap_samples"]) == (30_000, 0)
    assert row["n_padding_samples"] > 0
    assert row["audio_duration_s"] == row["duration_s"] == 30_000 / RATE_HZ
    row = audit_audio(sound_file(noise, codec="pcm_s16le", container="matroska", start_s=0.25, hole_s=0.1))
    assert (row["n_samples"], row["n_overlap_samples"]) == (30_000, 0)
    assert row["n_gap_samples"] == pytest.approx(4_800, abs=48)  # Matroska's clock ticks in ms
    assert row["audio_duration_s"] == (30_000 + row["n_gap_samples"]) / RATE_HZ
    row = audit_audio(sound_file(noise, codec="pcm_s16le", container="matroska", hole_s=-0.01))
    assert (row["n_samples"], row["n_gap_samples"]) == (30_000, 0)
    assert row["n_overlap_samples"] == pytest.approx(480, abs=48)


def test_timestamps_that_leave_most_out_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with av.open(str(path), "w", format="matroska") as out:
        stream = out.add_stream("pcm_s16le", rate=48_000, layout="mono")
        for number in range(60):
            frame = av.AudioFrame.from_ndarray(np.full((1, 1152), 999, np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 48_000, number * 96, Fraction(1, 48_000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with refusal(Unusable, what="timestamps", given=61344) as refused:
        audit_audio(str(path))
    assert (refused.value.outcome, refused.value.code) == ("rejected", "timestamps")


def test_stream_that_begins_in_mid_file_hides_nothing(tmp_path: Path) -> None:
    """A transport stream may; PyAV's demux may raise IndexError then, as memory happens to be."""
    parts = []
    for pid, codec in (("256", "aac"), ("512", "mp2")):
        path = tmp_path / pid
        with av.open(str(path), "w", format="mpegts", options={"mpegts_start_pid": pid}) as out:
            stream = out.add_stream(codec, rate=RATE_HZ, layout="mono")
            noise = np.random.default_rng(0).normal(0, 0.1, (1, 2 * RATE_HZ)).astype(np.float32)
            fifo = av.AudioFifo()
            frame = av.AudioFrame.from_ndarray(noise, format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, 0, Fraction(1, RATE_HZ)
            resampler = av.AudioResampler(
                format=stream.codec_context.format.name, layout="mono", rate=RATE_HZ
            )
            for piece in (*resampler.resample(frame), *resampler.resample(None)):
                fifo.write(piece)
            while (piece := fifo.read(stream.codec_context.frame_size, partial=True)) is not None:
                out.mux(stream.encode(piece))
            out.mux(stream.encode(None))
        parts.append(path.read_bytes())
    whole = tmp_path / "whole.ts"
    whole.write_bytes(parts[0] + parts[1])
    assert audit_audio(str(whole))["n_samples"] >= 2 * RATE_HZ


class Interrupted:
    """A container whose packets are read on after an IndexError, as PyAV's are."""

    def __init__(self, packets: list[Any], fails_before: set[int]) -> None:
        self.streams = [SimpleNamespace(index=0)]
        self._left, self._fails_before = list(enumerate(packets)), fails_before

    def demux(self, *streams: Any) -> Iterator[Any]:
        while self._left:
            number, packet = self._left.pop(0)
            yield packet
            if number + 1 in self._fails_before:
                raise IndexError("list index out of range")
        yield SimpleNamespace(stream=SimpleNamespace(index=0), dts=None, size=0)
        raise IndexError("list index out of range")


def test_packets_behind_an_index_error_are_read() -> None:
    packets = [SimpleNamespace(stream=SimpleNamespace(index=0), dts=n, size=9) for n in range(5)]
    found = list(demux_packets(Interrupted(packets, {2, 4}), SimpleNamespace(index=0)))  # type: ignore[arg-type]
    assert [packet.dts for packet in found] == [0, 1, 2, 3, 4, None]


def test_samples_that_are_no_numbers_are_rejected(sound_file: SoundFile) -> None:
    for bad in (np.nan, np.inf):
        samples = np.zeros(1000)
        samples[500] = bad
        with pytest.raises(Unusable) as refused:
            audit_audio(sound_file(samples))
        assert (refused.value.outcome, refused.value.code) == ("rejected", "not_finite")


@pytest.mark.parametrize(("codec", "container"), [("flac", "flac"), ("libmp3lame", "mp3"), ("alac", "mp4")])
def test_tail_of_a_quarter_second_is_missed(
    tmp_path: Path, sound_file: SoundFile, codec: str, container: str
) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * RATE_HZ)
    path = sound_file(noise, codec=codec, container=container)
    with av.open(path) as source:
        packets = [packet for packet in source.demux() if packet.size]
        keep = packets[int(len(packets) * 0.87)]
        assert keep.pos is not None
        end = keep.pos
    whole = Path(path).read_bytes()
    if container == "mp4":  # the header has to stand in front to be there at all
        whole = _faststart(tmp_path, path)
        with av.open(str(tmp_path / "fast.mp4")) as source:
            end = [packet.pos for packet in source.demux() if packet.size][int(len(packets) * 0.87)] or 0
    Path(path).write_bytes(whole[:end])
    with pytest.raises(Unusable) as refused:
        audit_audio(path)
    assert (refused.value.outcome, refused.value.code) == ("rejected", "truncated")


def test_long_wav_that_is_cut_is_missed_too(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with av.open(str(path), "w", format="wav", options={"rf64": "always"}) as out:
        stream = out.add_stream("pcm_s16le", rate=RATE_HZ, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.ones((1, RATE_HZ), np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    assert audit_audio(str(path))["n_samples"] == RATE_HZ
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(Unusable) as refused:
        audit_audio(str(path))
    assert refused.value.code == "truncated"


def _faststart(folder: Path, path: str) -> bytes:
    options = {"movflags": "faststart"}
    with (
        av.open(path) as source,
        av.open(str(folder / "fast.mp4"), "w", format="mp4", options=options) as out,
    ):
        stream = out.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    return (folder / "fast.mp4").read_bytes()


def test_flipped_bit_in_flac_is_found(sound_file: SoundFile) -> None:
    path = Path(sound_file(np.random.default_rng(0).normal(0, 0.1, RATE_HZ), codec="flac", container="flac"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)
    with pytest.raises(Unusable) as refused:
        audit_audio(str(path))
    assert refused.value.outcome == "rejected"


def test_seven_point_one_is_audited(sound_file: SoundFile) -> None:
    """Eight planes of floats once took the worker with them."""
    noise = np.random.default_rng(0).normal(0, 0.05, (8, RATE_HZ))
    row = audit_audio(sound_file(noise, codec="aac", container="mp4"))
    assert (row["channels"], row["channel_layout"]) == (8, "7.1")
    assert row["loudness_lufs"] is not None


def test_memory_does_not_grow_with_the_length(tmp_path: Path, sound_file: SoundFile) -> None:
    peaks = []
    for seconds in (15, 75):
        noise = np.random.default_rng(0).normal(0, 0.1, seconds * 16_000)
        path = sound_file(noise, 16_000, codec="pcm_s16le")
        del noise
        tracemalloc.start()
        audit_audio(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 60 * 16_000 * 4 / 3  # a third of the longer's samples as float32


def ebur128(path: Path) -> dict[str, float]:
    """What the command line's own FFmpeg says: I in LUFS, LRA in LU, Peak in dBFS."""
    command = [shutil.which("ffmpeg") or "ffmpeg", "-hide_banner", "-nostats", "-i", str(path)]
    done = subprocess.run(
        [*command, "-vn", "-af", "ebur128=peak=true:framelog=verbose", "-f", "null", "-"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = done.stderr[done.stderr.rindex("Summary:") :]
    return {name: float(value) for name, value in re.findall(r"(I|LRA|Peak):\s+(-?[\d.]+|-inf)", told)}


@pytest.mark.server
def test_corpus_is_as_loud_as_the_command_line_says() -> None:
    folder = os.environ.get("PENSTOCK_MEDIA")
    for path in sorted(Path(folder, "audio").rglob("*.*")) if folder else ():
        if path.suffix not in (".wav", ".flac", ".mp3", ".ogg", ".opus") or "adpcm" in path.name:
            continue  # FFmpeg 5 rounds ADPCM otherwise
        row: dict[str, Any] = audit_audio(str(path))
        told = ebur128(path)
        if row["loudness_lufs"] is None:
            assert told["I"] <= -70, path.name
            continue
        assert row["loudness_lufs"] == pytest.approx(told["I"], abs=0.11), path.name
        assert row["loudness_range_lu"] == pytest.approx(told["LRA"], abs=0.11), path.name
        assert row["true_peak_dbtp"] == pytest.approx(told["Peak"], abs=0.3), path.name
