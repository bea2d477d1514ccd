"""Audit audio: one full decode measures length, loudness, clipping and silence."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from loader.modalities.audio.downmix import MAX_CHANNELS, UnknownLayout, channel_mix
from loader.modalities.audio.timeline import BadSound, Ends, Floats, Heard

from ..container import (
    audio_facts,
    check_duration,
    check_machine,
    container_facts,
    open_container,
    require_audio,
)
from ..media_table import Row
from ..unit import Unusable, rejected
from .decode import (
    LoudnessMeter,
    MonoSum,
    UndecodableAudio,
    Unmeasurable,
    check_gaps,
    check_length,
    check_overlaps,
    decoded,
    prepare,
    stream_ends,
)

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.packet import Packet

FULL_SCALE = 0.9999
"""Share of full scale at which a sample counts as clipped: 32765 of 32768."""

SILENCE_RMS = 0.001
"""Audio with a lower root mean square is silent: -60 dBFS."""

WINDOW_S = 0.02


class AudioStatistics:
    """Statistics of decoded frames, in order. ends: the end that the file states (`decode.stream_ends`)."""

    def __init__(self, ends: Ends | None = None) -> None:
        self.heard = Heard(ends or Ends())
        self._meter: LoudnessMeter | None = None
        self._mono_sum = MonoSum()
        self._n_values = self._n_clipped = self._n_windows = self._n_silent = 0
        self._lowest = math.inf
        self._highest = -math.inf
        self._rest: Any = np.zeros((0,), np.float32)

    @property
    def n_samples(self) -> int:
        return self.heard.n_source

    def add(self, frame: "AudioFrame") -> None:
        """Add a frame. Raises: Unusable for a changed format, impossible timestamps or non-finite samples."""
        try:
            self._take(self.heard.add(frame))
        except BadSound as bad:
            raise rejected("decode", bad.code, bad.reason, given=bad.given, accepted=bad.accepted) from bad

    def _take(self, blocks: Iterator[Floats]) -> None:
        for block in blocks:
            if not self._n_values:
                self._meter = self._loudness_meter()
            self._count(block)
            if self._meter is not None:
                self._meter.add(block)
            if len(block) == 2:
                self._mono_sum.add(block)

    def _loudness_meter(self) -> LoudnessMeter | None:
        try:
            return LoudnessMeter(self.heard.rate_hz, self.heard.channels, self.heard.layout)
        except Unmeasurable:
            return None

    def _count(self, block: Floats) -> None:
        if not np.isfinite(block).all():
            raise rejected("decode", "not_finite", "the sound has samples that are NaN or infinite")
        self._n_values += block.size
        if block.size:
            self._lowest = min(self._lowest, float(block.min()))
            self._highest = max(self._highest, float(block.max()))
        self._n_clipped += int((np.abs(block) >= FULL_SCALE).sum())
        squares = np.square(block, dtype=np.float64)  # samples may be huge
        # float64 [samples]: mean power of the channels, after the samples of the window that the last block began
        power = np.concatenate([self._rest, squares.mean(axis=0)])
        # A damaged header may state a rate of a few Hz, whose window would have no sample.
        window = max(1, round(WINDOW_S * self.heard.rate_hz))
        n_windows = len(power) // window
        rms = np.sqrt(power[: n_windows * window].reshape(n_windows, window).mean(axis=1))
        self._n_windows += n_windows
        self._n_silent += int((rms < SILENCE_RMS).sum())
        self._rest = power[n_windows * window :]

    def facts(self, video_start_s: Fraction | None = None) -> Row:
        """Return the media columns; call once, after the last frame. Raises: Unusable."""
        heard = self.heard
        self._take(heard.finish())  # the last samples wait for later frames, which may lie before them
        check_overlaps(heard)
        offset_s = None
        if video_start_s is not None and heard.start is not None:
            offset_s = float(heard.start - video_start_s)
        measured: Row = {}
        if self._meter is not None:
            self._meter.finish()
            measured = {
                "loudness_lufs": self._meter.loudness_lufs,
                "loudness_range_lu": self._meter.range_lu,
                "true_peak_dbtp": self._meter.true_peak_dbtp,
            }
        return {
            "n_samples": heard.n_source,
            "audio_duration_s": heard.n_samples / heard.rate_hz if heard.rate_hz else 0.0,
            "audio_offset_s": offset_s,
            "clipped_ratio": self._n_clipped / self._n_values if self._n_values else 0.0,
            "silence_ratio": self._n_silent / self._n_windows if self._n_windows else 0.0,
            "amplitude_range": self._highest - self._lowest if self._n_values else 0.0,
            "n_gap_samples": heard.n_filled,
            "n_overlap_samples": heard.n_overlapping,
            "n_padding_samples": heard.n_padding,
            **measured,
            "mono_sum_db": self._mono_sum.db(),
            "mono_cancels": self._mono_sum.cancels(),
        }


def audit_audio(path: str) -> Row:
    """Return the media columns of an audio file. Raises: Unusable."""
    with open_container(path) as container:
        stream = require_audio(container)
        statistics = AudioStatistics(stream_ends(container, stream))
        try:
            for frame in decoded(container, stream):
                statistics.add(frame)
        except UndecodableAudio as error:
            raise rejected(
                "decode", "undecodable", f"after {statistics.n_samples} samples: {error}"
            ) from error
        if not statistics.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        measured = statistics.facts()
        heard = statistics.heard
        check_gaps(heard)
        check_length(container, stream, heard)
        end_s = (heard.start or 0) + Fraction(heard.n_samples + heard.n_padding, heard.rate_hz)
        missing_s = check_duration(container, float(end_s))
        header = {"codec": stream.codec_context.name, "profile": stream.profile, "tail_missing_s": missing_s}
        facts: Row = container_facts(container) | audio_facts(stream) | header | measured
        if stream.time_base is not None:
            facts |= {
                "time_base_num": stream.time_base.numerator,
                "time_base_den": stream.time_base.denominator,
            }
    return facts | {"duration_s": measured["audio_duration_s"]}


class TrackAudit:
    """Audit of a video's audio track, during the audit of the video. A damaged track leaves the video usable."""

    def __init__(self, container: "InputContainer", stream: "AudioStream") -> None:
        self._container = container
        self._stream = stream
        self._statistics = AudioStatistics(stream_ends(container, stream))
        self._error = ""
        prepare(stream)

    def add(self, packet: "Packet[Any]") -> None:
        """Add the next packet; packets after an error are ignored."""
        import av

        if self._error:
            return
        try:
            for frame in cast("list[AudioFrame]", packet.decode()):
                self._statistics.add(frame)
        except av.error.FFmpegError as error:
            check_machine(error, self._container.name)
            self._error = f"undecodable: after {self._statistics.n_samples} samples: {error.strerror}"
        except Unusable as unusable:
            self._error = f"{unusable.code}: {unusable.reason}"

    def facts(self, video_start_s: Fraction) -> Row:
        """Return the media columns: measurements, or why there are none."""
        header = audio_facts(self._stream)
        measured: Row = {}
        if not self._error:
            try:
                measured = self._measurements(video_start_s)
            except Unusable as unusable:
                self._error = f"{unusable.code}: {unusable.reason}"
        if self._error:
            return {**header, "audio_error": self._error}
        return {**header, **measured}

    def _measurements(self, video_start_s: Fraction) -> Row:
        if not self._statistics.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        measured = self._statistics.facts(video_start_s)
        heard = self._statistics.heard
        check_length(self._container, self._stream, heard)
        if heard.n_channels > MAX_CHANNELS:
            raise rejected(
                "decode",
                "channels",
                f"{heard.n_channels} channels; at most {MAX_CHANNELS} are taken",
                given=heard.n_channels,
                accepted=MAX_CHANNELS,
            )
        try:
            channel_mix(heard.channels, heard.layout, "mono")
        except UnknownLayout as error:
            raise rejected("decode", "unknown_layout", error, given=heard.layout) from error
        return measured
