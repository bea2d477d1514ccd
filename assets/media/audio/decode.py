"""Decode audio onto the container's timeline, in a policy's channels and rate, and meter it.

Frames are positioned by timestamps (`loader.modalities.audio.timeline`). Loudness and true peak: ITU-R BS.1770-4, EBU
R128, by FFmpeg.
"""

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from loader.errors import DecodeFailed, PenstockError
from loader.modalities.audio.downmix import MAX_CHANNELS, Channels, Mix, UnknownLayout, channel_mix
from loader.modalities.audio.padding import announced_length, audio_ends, check_lengths
from loader.modalities.audio.resample import Resampler, StrangeRate
from loader.modalities.audio.timeline import BadSound, Ends, Floats, Heard
from loader.modalities.video.container_checks import check_complete

from ..container import demux_packets, ffmpeg_refusal
from ..unit import dropped, rejected

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer


CANCELS_DB = -10.0
"""Channels cancel in mono if their sum is below this level in dB (correlation below -0.8)."""


class MonoSum:
    """Meter of the sum of two channels, block by block."""

    def __init__(self) -> None:
        self._sum = self._mean = 0.0

    def add(self, samples: Floats) -> None:
        """Add float32 [2, samples]."""
        first, second = samples.astype(np.float64)
        self._sum += float(np.square((first + second) / 2).sum())
        self._mean += float((np.square(first).sum() + np.square(second).sum()) / 2)

    def db(self) -> float | None:
        """Return the power of (left + right) / 2 relative to the channels' mean power, in dB.

        0 for equal channels, -3.01 for unrelated, -200 for inverted; None for silence or other than two channels.
        """
        if not self._mean:
            return None
        return max(-200.0, 10 * math.log10(max(self._sum / self._mean, 1e-20)))

    def cancels(self) -> bool | None:
        """Return whether the channels cancel; None if `db` returns None."""
        db = self.db()
        if db is None:
            return None
        return db < CANCELS_DB


MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 768_000
"""Accepted sample rates in Hz; the K-weighting filters are at 38 Hz and 1682 Hz."""

_GATE_LUFS = -70.0  # EBU Tech 3341: quieter blocks do not count. If all are quieter, the filter returns -70.


class Unmeasurable(PenstockError, ValueError):
    """Sample rate or channels for which the standard has no weights."""


class LoudnessMeter:
    """Loudness meter: add blocks, float32 [channels, samples] at full scale 1, call finish() once, then read results.

    loudness_lufs: integrated, gated; one channel is 3 LU less than two equal ones. None without a 400 ms block above
    -70.
    range_lu: EBU Tech 3342, unreliable below a minute; None if loudness_lufs is.
    true_peak_dbtp: oversampled to at least 192 kHz (BS.1770-4, annex 2). None for digital silence.

    About 300 times real time for stereo at 48 kHz. Raises: Unmeasurable.
    """

    def __init__(self, rate_hz: int, channels: tuple[str, ...], layout: str) -> None:
        self.loudness_lufs: float | None = None
        self.range_lu: float | None = None
        self.true_peak_dbtp: float | None = None
        if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            raise Unmeasurable(
                f"{rate_hz} Hz; from {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz",
                what="rate",
                given=rate_hz,
                accepted=[MIN_RATE_HZ, MAX_RATE_HZ],
            )
        # FFmpeg names channels "NONE" if the file states no layout. One or two of them are mono or stereo.
        if set(channels) == {"NONE"} and len(channels) <= 2:
            layout = ("mono", "stereo")[len(channels) - 1]
        self._rate_hz = rate_hz
        self._layout = layout
        self._n_seen = 0
        self._peak = 0.0
        self._ebur128 = self._build_graph()
        # To at least 192 kHz, as the true peak of BS.1770-4 needs.
        if rate_hz <= 48_000:
            factor = 4
        elif rate_hz <= 96_000:
            factor = 2
        else:
            factor = 1
        self._oversampler = Resampler(rate_hz, rate_hz * factor, len(channels), short=True)

    def add(self, samples: Floats) -> None:
        """Measure samples, float32 [channels, n]."""
        import av

        packed = np.ascontiguousarray(samples.T, dtype=np.float32).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=self._layout)
        frame.sample_rate = self._rate_hz
        frame.pts = self._n_seen
        frame.time_base = Fraction(1, self._rate_hz)
        self._n_seen += samples.shape[1]
        self._ebur128.push(frame)
        self._read()
        self._peak = max(self._peak, _largest(iter([samples])), _largest(self._oversampler.add(samples)))

    def finish(self) -> None:
        """Set the results; no loudness if all blocks are below the gate."""
        if not self._n_seen:
            return
        self._ebur128.push(None)
        self._read()
        self._peak = max(self._peak, _largest(self._oversampler.finish()))
        if self._peak:
            self.true_peak_dbtp = round(20 * math.log10(self._peak), 2)
        if self.loudness_lufs is not None and self.loudness_lufs <= _GATE_LUFS:
            self.loudness_lufs = self.range_lu = None

    def _build_graph(self) -> Any:
        import av
        import av.filter

        graph = av.filter.Graph()
        try:
            source = graph.add_abuffer(
                sample_rate=self._rate_hz,
                format="flt",
                layout=self._layout,
            )
            meter = graph.add("ebur128", "metadata=1:framelog=quiet")
            sink = graph.add("abuffersink")
            source.link_to(meter)
            meter.link_to(sink)
            graph.configure()
        except (av.error.FFmpegError, ValueError) as error:
            raise Unmeasurable(f"{self._layout} at {self._rate_hz} Hz: {error}") from error
        return graph

    def _read(self) -> None:
        """Take the loudness so far from the last frame that the filter has ready."""
        import av

        last = None
        while True:
            try:
                last = self._ebur128.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                break
        if last is None:
            metadata = {}
        else:
            metadata = last.metadata
        if "lavfi.r128.I" in metadata:
            self.loudness_lufs = round(float(metadata["lavfi.r128.I"]), 2)
            self.range_lu = round(float(metadata["lavfi.r128.LRA"]), 2)


def _largest(pieces: Iterator[Floats]) -> float:
    return max((float(max(piece.max(), -piece.min())) for piece in pieces if piece.size), default=0.0)


class AudioTimeline:
    """Iterator over a stream's audio in blocks, float32 [channels, samples] at `rate_hz`, full scale 1. Iterate once.

    heard: audio as decoded, with counts.
    mix: how channels are mixed; None before the first block.
    mono_sum: meter of two channels' sum; without samples for other numbers of channels.

    Holds about 65,536 samples.
    """

    def __init__(
        self,
        container: "InputContainer",
        stream: "AudioStream",
        rate_hz: int,
        channels: Channels = "mono",
    ) -> None:
        self.heard = Heard(stream_ends(container, stream))
        self.mix: Mix | None = None
        self.mono_sum = MonoSum()
        self._container = container
        self._stream = stream
        self._rate_hz = rate_hz
        self._channels = channels

    def __iter__(self) -> Iterator[Floats]:
        """Yield the audio in blocks. Raises: Unusable."""
        resampler: Resampler | None = None
        for piece in source_blocks(self._container, self._stream, self.heard):
            if resampler is None:
                self.mix = self._mix()
                if self.mix.matrix is None:
                    n_out = self.heard.n_channels
                else:
                    n_out = len(self.mix.matrix)
                resampler = self._resampler(n_out)
            assert self.mix is not None  # set together with the resampler
            if self.heard.n_channels == 2:
                self.mono_sum.add(piece)
            yield from resampler.add(self.mix(piece))
        if resampler is not None:
            yield from resampler.finish()

    def _resampler(self, n_channels: int) -> Resampler:
        try:
            return Resampler(self.heard.rate_hz, self._rate_hz, n_channels)
        except StrangeRate as error:
            raise rejected("decode", "sample_rate", error, given=self.heard.rate_hz) from error

    def _mix(self) -> Mix:
        """Return how the stream's channels are mixed. Raises: Unusable."""
        if self.heard.n_channels > MAX_CHANNELS:
            raise dropped(
                "cut",
                "channels",
                f"{self.heard.n_channels} channels; at most {MAX_CHANNELS} are taken",
                given=self.heard.n_channels,
                accepted=MAX_CHANNELS,
            )
        try:
            return channel_mix(self.heard.channels, self.heard.layout, self._channels)
        except UnknownLayout as error:
            raise dropped("cut", "unknown_layout", error, given=self.heard.layout) from error


def source_blocks(container: "InputContainer", stream: "AudioStream", heard: Heard) -> Iterator[Floats]:
    """Yield the stream's audio unmixed, in blocks. Raises: Unusable."""
    try:
        for frame in decoded(container, stream):
            yield from _finite(heard.add(frame))
        yield from _finite(heard.finish())
    except BadSound as bad:
        raise rejected("decode", bad.code, bad.reason, given=bad.given, accepted=bad.accepted) from bad
    except UndecodableAudio as error:
        raise rejected("decode", "undecodable", f"sound, after {heard.n_source} samples: {error}") from error
    check_length(container, stream, heard)
    check_overlaps(heard)


def decoded(container: "InputContainer", stream: "AudioStream") -> Iterator["AudioFrame"]:
    """Yield a stream's decoded frames. Raises: UndecodableAudio; Unusable if there is no decoder."""
    import av

    prepare(stream)
    n_frames = 0
    try:
        for packet in demux_packets(container, stream):
            for frame in cast("list[AudioFrame]", packet.decode()):
                n_frames += 1
                yield frame
    except av.error.FFmpegError as error:
        refusal = ffmpeg_refusal(error, container.name, "decode", "undecodable", error.strerror, n_frames)
        if refusal.outcome == "not_supported":
            raise refusal from error
        raise UndecodableAudio(error.strerror) from error


class UndecodableAudio(Exception):
    """Audio that FFmpeg cannot decode, with FFmpeg's message."""


def prepare(stream: "AudioStream") -> None:
    """Prepare a decoder: one thread, and FLAC's checksums, which FFmpeg skips by default."""
    stream.codec_context.thread_count = 1
    if stream.codec_context.name == "flac":
        stream.codec_context.options = {"err_detect": "crccheck+explode"}


def stream_ends(container: "InputContainer", stream: "AudioStream") -> Ends:
    """Return where the audio ends according to its file."""
    with _map_file(container.name) as data:
        return audio_ends(container, stream, data)


def check_length(container: "InputContainer", stream: "AudioStream", heard: Heard) -> None:
    """Check that a FLAC, WAV, MP3 or MP4 has the samples that its header announces. Raises: Unusable."""
    name = container.format.name
    with _map_file(container.name) as data:
        promise = announced_length(name, data)
        if promise is not None and promise.n_samples - heard.n_source > promise.slack_s * heard.rate_hz:
            raise rejected(
                "decode",
                "truncated",
                f"the header announces {promise.n_samples} samples, {heard.n_source} are there",
                where="samples",
                given=heard.n_source,
                accepted=promise.n_samples,
            )
        try:
            check_lengths(data)
            if name.startswith("mov"):
                check_complete(stream, len(data))
        except DecodeFailed as error:
            raise rejected("decode", "truncated", error, where="bytes", given=len(data)) from error


@contextmanager
def _map_file(path: str) -> Iterator[mmap.mmap]:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _finite(pieces: Iterator[Floats]) -> Iterator[Floats]:
    for piece in pieces:
        if not np.isfinite(piece).all():
            raise rejected("decode", "not_finite", "the sound has samples that are NaN or infinite")
        yield piece


def check_overlaps(heard: Heard) -> None:
    """Check that most samples do not overlap others. Raises: Unusable."""
    if 2 * heard.n_overlapping > heard.n_source:
        raise rejected(
            "decode",
            "timestamps",
            f"{heard.n_overlapping} of {heard.n_source} samples are said to be heard at the time of others",
            given=heard.n_overlapping,
            accepted=heard.n_source // 2,
        )


def check_gaps(heard: Heard) -> None:
    """Check that there are more decoded than filled-in samples. Raises: Unusable."""
    if heard.n_filled > heard.n_source:
        reason = f"{heard.n_source} samples are decoded, and {heard.n_filled} missing between them"
        raise rejected("decode", "gaps", reason, given=heard.n_filled, accepted=heard.n_source)


def read_pieces(
    timeline: AudioTimeline, spans: list[tuple[Fraction, Fraction]], rate_hz: int
) -> Iterator[tuple[Floats, int]]:
    """Yield (samples, number of decoded ones) for each span, [start, end) in seconds on the container's clock.

    Samples are float32 [channels, n], silence where the stream has none. Spans are sorted by start and may overlap;
    memory holds a block and overlapping ones. Raises: Unusable.
    """
    waiting = [_SpanSamples(start, round((end - start) * rate_hz)) for start, end in spans]
    first = position = 0
    n_channels = 1
    for block in timeline:
        zero = timeline.heard.start
        n_channels = block.shape[0]
        assert zero is not None  # set, since it yielded a block
        end = position + block.shape[1]
        for number in range(first, len(waiting)):
            begin = round((waiting[number].start - zero) * rate_hz)
            if begin >= end:
                break
            waiting[number].add(block, position - begin)
        while first < len(waiting) and waiting[first].end(zero, rate_hz) <= end:
            yield waiting[first].done(n_channels)
            first += 1
        position = end
        if first == len(waiting):
            return
    for piece in waiting[first:]:
        yield piece.done(n_channels)


class _SpanSamples:
    """Samples of one span, zeros where the stream has none."""

    def __init__(self, start: Fraction, n_samples: int) -> None:
        self.start = start
        self._n = n_samples
        self._samples: Floats | None = None
        self._n_real = 0

    def end(self, zero: Fraction, rate_hz: int) -> int:
        """Return the stream's sample after the span. zero: time of the stream's sample 0."""
        return round((self.start - zero) * rate_hz) + self._n

    def add(self, block: Floats, at: int) -> None:
        """Copy the part of a block that lies in the span. at: the block's first sample, counted from the span's."""
        low = max(0, at)
        high = min(self._n, at + block.shape[1])
        if low >= high:
            return
        if self._samples is None:
            self._samples = np.zeros((block.shape[0], self._n), np.float32)
        self._samples[:, low:high] = block[:, low - at : high - at]
        self._n_real += high - low

    def done(self, n_channels: int) -> tuple[Floats, int]:
        """Return (samples [channels, n], how many of them the stream had), and free them here."""
        samples = self._samples
        self._samples = None
        if samples is None:
            samples = np.zeros((n_channels, self._n), np.float32)
        return samples, self._n_real
