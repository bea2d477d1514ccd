"""Reference clips: whole GOPs of the source, packet for packet, in an mp4 that starts with its index.

A clip has the GOPs that its span touches, or for a shot the ones inside. Source and clip are decoded and compared bit
for bit. Frames that readers would have to convert are not copied: non-square pixels, fields, more than 8 bits, HDR,
wide primaries. Nor are packets without display times, codecs that mp4 does not support, or open or long GOPs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..container import PacketIndex, first_video, opened
from ..policy import VideoPolicy
from ..unit import Unusable, rejected
from ..video.colour import display_matrix, rendering_of
from ..video.frame_filter import turns_of
from ..video.seek_audit import frame_crc
from ..video.span_frames import CannotSeek, frames_of
from ..video.spans import ClipSpan
from ..video.timestamps import has_display_times
from .clip import Clip, PacketTables
from .remux import GopCut, Gops, NotForMp4, Packets, copy_packets, stream_packets

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream


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

    Demuxes the file twice, and decodes the spans and the clips. Raises: Unusable; StoreError if the disk is full.
    """
    with opened(path) as container:
        stream = _stream(container)
        packets = stream_packets(container, stream) if has_display_times(container) else None
    shape = _shape(path, policy, audit) if packets is not None else "no_timestamps"
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

    with opened(path) as container:
        stream = _stream(container)
        try:
            frame = next(container.decode(stream), None)
        except av.error.FFmpegError as error:
            raise rejected("decode", "undecodable", error.strerror) from error
        if frame is None:
            raise rejected("decode", "no_frames", "its packets give no frame")
        rendering = rendering_of(frame, policy)
        if rendering.treatment:
            return f"colour_{rendering.treatment}"
        if (stream.sample_aspect_ratio or 1) != 1:
            return "pixel_aspect"
        if frame.interlaced_frame or audit.get("interlaced_ratio"):
            return "interlaced"
        _, sideways = turns_of(display_matrix(frame))
        size_px = (frame.height, frame.width) if sideways else (frame.width, frame.height)
        return _Shape(size_px=size_px, assumed=rendering.assumed)


def _extent(cut: GopCut, packets: Packets) -> ClipSpan:
    if cut.stop < len(packets.pts):
        return ClipSpan(start=packets.pts[cut.first], end=packets.pts[cut.stop])
    last = max(range(cut.first, cut.stop), key=lambda number: packets.pts[number])
    return ClipSpan(start=packets.pts[cut.first], end=packets.pts[last] + max(1, packets.duration[last]))


def _source_crcs(path: str, spans: Sequence[ClipSpan], audit: Mapping[str, Any]) -> Mapping[int, int]:
    if not spans:
        return {}
    try:
        return _decoded_crcs(path, spans, audit, seeks=bool(audit))
    except CannotSeek:
        return _decoded_crcs(path, spans, audit, seeks=False)


def _decoded_crcs(
    path: str, spans: Sequence[ClipSpan], audit: Mapping[str, Any], *, seeks: bool
) -> Mapping[int, int]:
    import av

    with opened(path) as container:
        stream = _stream(container)
        crcs: dict[int, int] = {}
        try:
            for timed in frames_of(container, stream, spans, audit, seeks=seeks):
                crcs[timed.pts] = frame_crc(timed.frame)
        except av.error.FFmpegError as error:
            if seeks:  # after a failed seek, decoding in order may work
                raise CannotSeek(str(error.strerror)) from error
            raise rejected("decode", "undecodable", f"after {len(crcs)} frames: {error.strerror}") from error
    return crcs


def _same(target: Path, pts: Sequence[int], base: Fraction, expected: Mapping[int, int]) -> bool:
    import av

    source = [((at - pts[0]) * base, expected.get(at)) for at in pts]
    try:
        with opened(str(target)) as container:
            stream = _stream(container)
            ticks = stream.time_base or Fraction(0)
            shown = [((frame.pts or 0) * ticks, frame_crc(frame)) for frame in container.decode(stream)]
    except (Unusable, av.error.FFmpegError):
        return False
    return shown == source


def _clip(span: ClipSpan, target: Path, pts: list[int], end: int, shape: _Shape) -> Clip:
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
