"""Video packets copied into mp4 files unchanged."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..container import first_video, opened
from ..scratch import check_scratch
from ..video.gops import Cut, Packets

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream


class NotForMp4(Exception):
    """Packets that mp4 cannot hold, with the reason in one word."""


def copy_packets(path: str, packets: Packets, cuts: Sequence[tuple[Cut, Path]]) -> None:
    """Write each cut into its file, its first frame at 0; cuts may overlap. One pass over the source.

    Raises: NotForMp4; Unusable; StoreError for a full disk.
    """
    import av

    waiting = sorted(cuts, key=lambda cut: -cut[0].first)
    writing: list[_Copy] = []
    if any(len(set(packets.pts[cut.first : cut.stop])) < cut.stop - cut.first for cut, _ in cuts):
        raise NotForMp4("no_timestamps")  # two frames at one time
    with opened(path) as container:
        stream = first_video(container)
        assert stream is not None  # it was there when the packets were indexed
        try:
            _try_header(stream)
            for number, packet in enumerate(packet for packet in container.demux(stream) if packet.size):
                for copy in [copy for copy in writing if copy.stop == number]:
                    copy.close()
                    writing.remove(copy)
                while waiting and waiting[-1][0].first == number:
                    writing.append(_Copy(*waiting.pop(), stream, packets))
                if writing and (packet.has_sidedata("new_extradata") or packet.has_sidedata("palette")):
                    raise NotForMp4("codec_change")
                for copy in writing:
                    copy.add(bytes(packet), number)
                if not waiting and not writing:
                    return
            for copy in writing:
                copy.close()
        except (av.error.FFmpegError, ValueError) as error:  # ValueError: a codec outside mp4
            for _, target in cuts:
                check_scratch(error, target.parent)
            raise NotForMp4("codec") from error
        finally:
            for copy in writing:
                copy.abandon()


def _try_header(stream: "VideoStream") -> None:
    """Raise now what starting an mp4 of this stream would raise: PyAV 18 leaves such a file open for good."""
    import av

    with av.open(io.BytesIO(), "w", format="mp4") as output:
        copied = output.add_stream_from_template(stream, opaque=True)
        copied.time_base = stream.time_base
        output.start_encoding()


class _Copy:
    def __init__(self, cut: Cut, target: Path, stream: "VideoStream", packets: Packets) -> None:
        import av

        base = stream.time_base
        assert base is not None  # index_packets refused such a stream
        self.stop = cut.stop
        self._cut, self._packets = cut, packets
        inside = packets.pts[cut.first : cut.stop]
        shown = sorted(inside)
        self._zero = shown[0]
        # Decode times must ascend and not exceed display times: sorted display times, shifted back as far as
        # reordering needs. Not every container stores decode times.
        back = max(at - pts for at, pts in zip(shown, inside, strict=True))
        self._dts = [at - back for at in shown]
        last = max(range(cut.first, cut.stop), key=lambda number: packets.pts[number])
        self._end = packets.pts[last] + max(1, packets.duration[last])
        options = {"movflags": "+faststart+write_colr", "video_track_timescale": str(base.denominator)}
        self._output: OutputContainer | None = av.open(str(target), "w", format="mp4", options=options)
        # opaque: else PyAV looks for an encoder of the decoder's name, and libdav1d has none
        self._stream = self._output.add_stream_from_template(stream, opaque=True)
        self._stream.time_base = self._base = base

    def add(self, data: bytes, number: int) -> None:
        """Write a packet. Raises: av.error.FFmpegError; ValueError."""
        import av

        assert self._output is not None  # until it is closed
        packet: Any = av.Packet(data)
        packet.pts = self._packets.pts[number] - self._zero
        packet.dts = self._dts[number - self._cut.first] - self._zero
        packet.is_keyframe = self._packets.key[number]
        packet.time_base = self._base
        packet.duration = max(1, self._packets.duration[number])
        if number + 1 == self.stop:  # the file lasts as long as its frames
            packet.duration = max(1, self._end - self._zero + self._dts[0] - self._dts[-1])
        packet.stream = self._stream
        self._output.mux(packet)

    def close(self) -> None:
        """Write the muxer's remaining packets; a second call does nothing."""
        output, self._output = self._output, None
        if output is not None:
            output.close()

    def abandon(self) -> None:
        """Close an unwanted file, ignoring FFmpeg's errors."""
        import av

        with contextlib.suppress(av.error.FFmpegError, ValueError):
            self.close()
