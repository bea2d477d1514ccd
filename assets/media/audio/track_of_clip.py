"""The sound beside a picture, measured on the way: a fault of it costs the sound and not the picture."""

from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from loader.modalities.audio.downmix import MAX_CHANNELS, UnknownLayout, mix_for

from ..container import audio_facts, check_machine
from ..media_table import Row
from ..unit import Unusable, rejected
from .audit import AudioStatistics
from .decode import check_length, ends_in, prepare

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.packet import Packet


class TrackAudit:
    """Audit of a video's audio track during the video's decode; its fault leaves the video usable."""

    def __init__(self, container: "InputContainer", stream: "AudioStream") -> None:
        self._container, self._stream = container, stream
        self._statistics = AudioStatistics(ends_in(container, stream))
        self._error = ""
        prepare(stream)

    def add(self, packet: "Packet[Any]") -> None:
        """Add the next packet; decodes nothing after an error."""
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
        """Return the columns: measurements, or the reason for none."""
        header = audio_facts(self._stream)
        measured: Row = {}
        if not self._error:
            try:
                measured = self._measured(video_start_s)
            except Unusable as unusable:
                self._error = f"{unusable.code}: {unusable.reason}"
        return {**header, "audio_error": self._error} if self._error else {**header, **measured}

    def _measured(self, video_start_s: Fraction) -> Row:
        """Return the measurements. Raises: Unusable for audio that the cutter cannot use."""
        if not self._statistics.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        measured = self._statistics.facts(video_start_s)
        heard = self._statistics.heard
        check_length(self._container, self._stream, heard)
        if heard.n_channels > MAX_CHANNELS:
            raise rejected(
                "decode", "channels", f"{heard.n_channels} channels; at most {MAX_CHANNELS} are taken"
            )
        try:
            mix_for(heard.channels, heard.layout, "mono")
        except UnknownLayout as error:
            raise rejected("decode", "unknown_layout", error) from error
        return measured
