"""Reference clips: whole GOPs of the source, packet for packet, in an mp4 that starts with its index.

Clips are decoded and compared with the source bit for bit. Frames that readers would have to convert are not copied:
non-square pixels, fields, more than 8 bits, HDR, wide primaries. Nor are packets without display times, codecs that mp4
does not support, or open or long GOPs.
"""

import contextlib
import io
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..container import PacketIndex, check_scratch, first_video, open_container
from ..policy import VideoPolicy
from ..unit import Unusable, rejected
from ..video.colour import display_matrix, frame_rendering
from ..video.frame_filter import matrix_filters
from ..video.spans import CannotSeek, Clip, ClipSpan, PacketTables, span_frames
from ..video.timestamps import frame_crc, has_display_times

if TYPE_CHECKING:
    from av.container import InputContainer, OutputContainer
    from av.video.stream import VideoStream


Reason = Literal["no_timestamps", "edit_list", "long_gop", "open_gop", "no_gop_inside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """Packets of one stream, in decode order."""

    pts: Sequence[int]
    """Display times in ticks."""
    duration: Sequence[int]
    """Durations in ticks."""
    key: Sequence[bool]
    """True for keyframes."""
    hidden: Sequence[bool]
    """True if an edit list hides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GopCut:
    """Range of packets in decode order that makes up whole GOPs."""

    first: int
    """Index of the first packet."""
    stop: int
    """Index after the last packet."""


def stream_packets(container: "InputContainer", stream: "VideoStream") -> Packets | None:
    """Read all packets once; None if one has no display time."""
    rows = [
        (packet.pts, packet.duration or 0, packet.is_keyframe, packet.is_discard)
        for packet in container.demux(stream)
        if packet.size
    ]
    if not rows or any(row[0] is None for row in rows):
        return None
    pts, duration, key, hidden = zip(*rows, strict=True)
    return Packets(pts=pts, duration=duration, key=key, hidden=hidden)


class Gops:
    """Cut points: keyframes shown after all earlier packets and before all later ones.

    An open GOP's keyframe is not a cut point: frames stored after it but shown before it refer to the previous GOP.
    """

    def __init__(self, packets: Packets, shortest: int) -> None:
        self._packets = packets
        self._shortest = shortest
        pts = packets.pts
        n = len(packets.pts)
        latest = [pts[0] - 1, *accumulate(pts, max)]  # among the previous packets
        earliest = [*accumulate(reversed(pts), min)][::-1]  # among this and all later packets
        keys = [number for number in range(n) if packets.key[number]]
        self._all = _Points(keys, pts)
        self._clean = _Points([at for at in keys if earliest[at] == pts[at] > latest[at]], pts)
        self._shown = sorted(at for at, hidden in zip(pts, packets.hidden, strict=True) if not hidden)

    def cut(self, span: ClipSpan, policy: VideoPolicy) -> GopCut | Reason:
        """Return the whole GOPs around a span, or inside a shot, or why they cannot be used."""
        low = bisect_left(self._shown, span.start)
        high = bisect_left(self._shown, span.end)
        if low == high:
            return "no_gop_inside"
        if span.shot is not None:
            gops = self._inside(span)
        else:
            gops = self._gop_cut(self._clean, low, high)
        if gops is None:
            if len(self._all.numbers) > len(self._clean.numbers):
                return "open_gop"
            return "no_gop_inside"
        if any(self._packets.hidden[gops.first : gops.stop]):
            return "edit_list"
        most = policy.max_overhead_ratio * (high - low)
        if span.shot is None and gops.stop - gops.first > most:
            least = self._gop_cut(self._all, low, high)
            if least is not None and least.stop - least.first <= most:
                return "open_gop"
            return "long_gop"
        return gops

    def _gop_cut(self, points: "_Points", low: int, high: int) -> GopCut | None:
        """Return the fewest packets between keyframes that show frames `low` to `high`; None without a first one."""
        first = bisect_right(points.pts, self._shown[low]) - 1
        if high < len(self._shown):
            stop = bisect_left(points.pts, self._shown[high])
        else:
            stop = len(points.pts)
        if first < 0:
            return None
        if stop < len(points.numbers):
            end = points.numbers[stop]
        else:
            end = len(self._packets.pts)
        return GopCut(first=points.numbers[first], stop=end)

    def _inside(self, span: ClipSpan) -> GopCut | None:
        """Return the most packets between keyframes inside a span; None if they last too short."""
        points = self._clean
        first = bisect_left(points.pts, span.start)
        stop = bisect_right(points.pts, span.end) - 1
        if span.end > self._shown[-1]:  # the span ends after the last frame
            last = len(self._packets.pts)
            end = span.end
        else:
            last, end = 0, 0  # no keyframe in the span: too short
            if stop >= 0:
                last, end = points.numbers[stop], points.pts[stop]
        if first >= len(points.numbers) or end - points.pts[first] < self._shortest:
            return None
        return GopCut(first=points.numbers[first], stop=last)


class _Points:
    """Keyframes: packet indexes, and their pts."""

    def __init__(self, numbers: Sequence[int], pts: Sequence[int]) -> None:
        self.numbers = numbers
        self.pts = [pts[number] for number in numbers]


class NotForMp4(Exception):
    """Packets that cannot be stored in mp4, with the reason code."""


def copy_packets(path: str, packets: Packets, cuts: Sequence[tuple[GopCut, Path]]) -> None:
    """Write each cut to its file, from time 0, in one pass. Cuts may overlap.

    Raises: NotForMp4; Unusable; StoreError if the disk is full.
    """
    import av

    waiting = sorted(cuts, key=lambda cut: -cut[0].first)
    writing: list[_Mp4Writer] = []
    if any(len(set(packets.pts[cut.first : cut.stop])) < cut.stop - cut.first for cut, _ in cuts):
        raise NotForMp4("no_timestamps")  # two frames have the same time
    with open_container(path) as container:
        stream = first_video(container)
        assert stream is not None  # it existed when the packets were indexed
        try:
            _try_header(stream)
            for number, packet in enumerate(packet for packet in container.demux(stream) if packet.size):
                for copy in [copy for copy in writing if copy.stop == number]:
                    copy.close()
                    writing.remove(copy)
                while waiting and waiting[-1][0].first == number:
                    writing.append(_Mp4Writer(*waiting.pop(), stream, packets))
                if writing and (packet.has_sidedata("new_extradata") or packet.has_sidedata("palette")):
                    raise NotForMp4("codec_change")
                for copy in writing:
                    copy.add(bytes(packet), number)
                if not waiting and not writing:
                    return
            for copy in writing:
                copy.close()
        except (av.error.FFmpegError, ValueError) as error:  # ValueError: mp4 does not support the codec
            for _, target in cuts:
                check_scratch(error, target.parent)
            raise NotForMp4("codec") from error
        finally:
            for copy in writing:
                copy.abandon()


def _try_header(stream: "VideoStream") -> None:
    import av

    # Fail here rather than in a file, which PyAV 18 would never close.
    with av.open(io.BytesIO(), "w", format="mp4") as output:
        copied = output.add_stream_from_template(stream, opaque=True)
        copied.time_base = stream.time_base
        output.start_encoding()


class _Mp4Writer:
    def __init__(
        self,
        cut: GopCut,
        target: Path,
        stream: "VideoStream",
        packets: Packets,
    ) -> None:
        import av

        base = stream.time_base
        assert base is not None  # index_packets rejects such streams
        self.stop = cut.stop
        self._cut = cut
        self._packets = packets
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
        # opaque: otherwise PyAV looks for an encoder named like the decoder, and libdav1d has none
        self._stream = self._output.add_stream_from_template(stream, opaque=True)
        self._stream.time_base = self._base = base

    def add(self, data: bytes, number: int) -> None:
        import av

        assert self._output is not None  # not closed yet
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
        output = self._output
        self._output = None
        if output is not None:
            output.close()

    def abandon(self) -> None:
        import av

        with contextlib.suppress(av.error.FFmpegError, ValueError):
            self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """size_px: upright size; assumed: whether colour tags are missing."""

    size_px: tuple[int, int]
    assumed: bool


def reference_clips(
    path: str,
    spans: Sequence[ClipSpan],
    index: PacketIndex,
    scratch: Path,
    policy: VideoPolicy,
    audit: Mapping[str, Any],
) -> list[Clip | str]:
    """Return a clip per span, in order, or the reason why it has none.

    Demuxes the file twice, decodes spans and clips. Raises: Unusable; StoreError if the disk is full.
    """
    with open_container(path) as container:
        stream = _stream(container)
        packets = None
        if has_display_times(container):
            packets = stream_packets(container, stream)
    shape: _Shape | str = "no_timestamps"
    if packets is not None:
        shape = _shape(path, policy, audit)
    if packets is None or isinstance(shape, str):
        return [str(shape)] * len(spans)
    gops = Gops(packets, shortest=round(policy.min_clip_s / Fraction(*index.time_base)))
    cuts = [gops.cut(span, policy) for span in spans]
    clips = {place: cut for place, cut in enumerate(cuts) if isinstance(cut, GopCut)}
    targets = {place: scratch / f"clip-{place:04d}.mp4" for place in clips}
    try:
        copy_packets(path, packets, [(clips[place], targets[place]) for place in clips])
    except NotForMp4 as reason:
        return [str(reason) if isinstance(cut, GopCut) else cut for cut in cuts]
    expected = _source_crcs(path, [_extent(cut, packets) for cut in clips.values()], audit)
    results: list[Clip | str] = []
    for place, cut in enumerate(cuts):
        if isinstance(cut, str):
            results.append(cut)
            continue
        pts = sorted(packets.pts[cut.first : cut.stop])
        if _same(targets[place], pts, Fraction(*index.time_base), expected):
            clip = _clip(spans[place], targets[place], pts, _extent(cut, packets).end, shape)
            results.append(clip)
        else:
            targets[place].unlink()
            results.append("not_identical")
    return results


def _stream(container: "InputContainer") -> "VideoStream":
    stream = first_video(container)
    assert stream is not None  # it existed when the packets were indexed
    stream.thread_count = 1
    return stream


def _shape(path: str, policy: VideoPolicy, audit: Mapping[str, Any]) -> _Shape | str:
    """Return the frames' shape, or why packets cannot be copied."""
    import av

    with open_container(path) as container:
        stream = _stream(container)
        try:
            frame = next(container.decode(stream), None)
        except av.error.FFmpegError as error:
            raise rejected("decode", "undecodable", error.strerror) from error
        if frame is None:
            raise rejected("decode", "no_frames", "its packets give no frame")
        rendering = frame_rendering(frame, policy)
        if rendering.treatment:
            return f"colour_{rendering.treatment}"
        if (stream.sample_aspect_ratio or 1) != 1:
            return "pixel_aspect"
        if frame.interlaced_frame or audit.get("interlaced_ratio"):
            return "interlaced"
        _, sideways = matrix_filters(display_matrix(frame))
        if sideways:
            size_px = (frame.height, frame.width)
        else:
            size_px = (frame.width, frame.height)
        return _Shape(size_px=size_px, assumed=rendering.assumed)


def _extent(cut: GopCut, packets: Packets) -> ClipSpan:
    if cut.stop < len(packets.pts):
        return ClipSpan(start=packets.pts[cut.first], end=packets.pts[cut.stop])
    last = max(range(cut.first, cut.stop), key=lambda number: packets.pts[number])
    return ClipSpan(start=packets.pts[cut.first], end=packets.pts[last] + max(1, packets.duration[last]))


def _source_crcs(path: str, spans: Sequence[ClipSpan], audit: Mapping[str, Any]) -> Mapping[int, int]:
    """Return pts -> checksum of each decoded frame of the spans. Raises: Unusable."""
    if not spans:
        return {}
    try:
        return _decode_crcs(path, spans, audit, seeks=bool(audit))
    except CannotSeek:
        return _decode_crcs(path, spans, audit, seeks=False)


def _decode_crcs(
    path: str,
    spans: Sequence[ClipSpan],
    audit: Mapping[str, Any],
    *,
    seeks: bool,
) -> Mapping[int, int]:
    import av

    with open_container(path) as container:
        stream = _stream(container)
        crcs: dict[int, int] = {}
        try:
            for timed in span_frames(container, stream, spans, audit, seeks=seeks):
                crcs[timed.pts] = frame_crc(timed.frame)
        except av.error.FFmpegError as error:
            if seeks:  # after a failed seek, decoding in order may work
                raise CannotSeek(str(error.strerror)) from error
            raise rejected("decode", "undecodable", f"after {len(crcs)} frames: {error.strerror}") from error
    return crcs


def _same(
    target: Path,
    pts: Sequence[int],
    base: Fraction,
    expected: Mapping[int, int],
) -> bool:
    """Return whether a clip decodes to the source's frames at their times. expected: pts -> checksum of a frame."""
    import av

    source = [((at - pts[0]) * base, expected.get(at)) for at in pts]
    try:
        with open_container(str(target)) as container:
            stream = _stream(container)
            ticks = stream.time_base or Fraction(0)
            shown = [((frame.pts or 0) * ticks, frame_crc(frame)) for frame in container.decode(stream)]
    except (Unusable, av.error.FFmpegError):
        return False
    return shown == source


def _clip(
    span: ClipSpan,
    target: Path,
    pts: list[int],
    end: int,
    shape: _Shape,
) -> Clip:
    inside = [number for number, at in enumerate(pts) if span.start <= at < span.end]
    return Clip(
        path=target,
        packets=PacketTables().write(target),
        span=span,
        pts=pts,
        end=end,
        size_px=shape.size_px,
        requested=(inside[0], len(inside)),
        mode="reference",
        metadata={
            "psnr_db": None,
            "worst_psnr_db": None,
            "n_deinterlaced": 0,
            "colour_treatment": "",
            "colour_assumed": shape.assumed,
        },
    )
