"""Packets of a video put into mp4 files as they are."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..container import moving_picture, opened
from ..scratch import check_scratch
from ..video.gops import Cut, Packets

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream


class NotForMp4(Exception):
    """Packets that cannot be put into an mp4, with the reason in a word."""


def copy_packets(path: str, packets: Packets, cuts: Sequence[tuple[Cut, Path]]) -> None:
    """Write each cut into a file of its own, its first frame at 0; cuts may overlap. One pass over the source.

    Raises: NotForMp4; Unusable; StoreError when the disk is full.
    """
    import av

    waiting = sorted(cuts, key=lambda cut: -cut[0].first)
    writing: list[_Copy] = []
    if any(len(set(packets.pts[cut.first : cut.stop])) < cut.stop - cut.first for cut, _ in cuts):
        raise NotForMp4("no_timestamps")  # two frames at one moment
    with opened(path) as container:
        stream = moving_picture(container)
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
        except (av.error.FFmpegError, ValueError) as error:  # ValueError: a codec that mp4 does not know
            for _, target in cuts:
                check_scratch(error, target.parent)
            raise NotForMp4("codec") from error
        finally:
            for copy in writing:
                copy.abandon()


def _try_header(stream: "VideoStream") -> None:
    """Raise the error that an mp4 file of this stream would raise at its beginning.

    PyAV 18 leaves such a file open for good. Raises: av.error.FFmpegError; ValueError.
    """
    import av

    with av.open(io.BytesIO(), "w", format="mp4") as output:
        copied = output.add_stream_from_template(stream, opaque=True)
        copied.time_base = stream.time_base
        output.start_encoding()


class _Copy:
    """One file being written."""

    def __init__(self, cut: Cut, target: Path, stream: "VideoStream", packets: Packets) -> None:
        import av

        base = stream.time_base
        assert base is not None  # index_packets refused such a stream
        self.stop = cut.stop
        self._cut, self._packets = cut, packets
        inside = packets.pts[cut.first : cut.stop]
        shown = sorted(inside)
        self._zero = shown[0]
        # A decoder takes packets at ever later times, none later than its frame is shown: the times of the frames in
        # order, moved back as far as reordering needs. Not every container stores times of decoding.
        back = max(at - pts for at, pts in zip(shown, inside, strict=True))
        self._dts = [at - back for at in shown]
        last = max(range(cut.first, cut.stop), key=lambda number: packets.pts[number])
        self._end = packets.pts[last] + max(1, packets.duration[last])
        options = {"movflags": "+faststart+write_colr", "video_track_timescale": str(base.denominator)}
        self._output: OutputContainer | None = av.open(str(target), "w", format="mp4", options=options)
        # opaque: PyAV would look for an encoder by the decoder's name, and there is no encoder libdav1d
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
        if number + 1 == self.stop:  # so that the whole lasts as long as its frames are shown
            packet.duration = max(1, self._end - self._zero + self._dts[0] - self._dts[-1])
        packet.stream = self._stream
        self._output.mux(packet)

    def close(self) -> None:
        """Write the packets that the muxer still holds; the second time do nothing. Raises: av.error.FFmpegError."""
        output, self._output = self._output, None
        if output is not None:
            output.close()

    def abandon(self) -> None:
        """Close a file that is not wanted any more, whatever goes wrong."""
        import av

        with contextlib.suppress(av.error.FFmpegError, ValueError):
            self.close()
