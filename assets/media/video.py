"""Videos: one sequential decode audits the whole file and re-encodes the chosen clips, timestamps kept.

The canonical clip: x264 veryfast crf 20, tune fastdecode, a keyframe every 12 frames, no B-frames, yuv420p,
faststart, display orientation and square pixels, limited-range BT.601 and tagged so. Without sound.
"""

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .container import PacketIndex, index_packets, moving_picture, opened
from .picture_filter import PictureFilter
from .unit import CutPolicy, Unit, at, rejected

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_X264 = {"preset": "veryfast", "crf": "20", "tune": "fastdecode", "g": "12", "bf": "0"}
_MPEG_RANGE, _SMPTE170M = 1, 6  # AVCOL_RANGE_MPEG, AVCOL_SPC_SMPTE170M


def cut_video(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Units with the fields `mp4` (a file in `scratch`) and `json` (source pts of every frame).

    Raises: Unusable for a file that cannot be opened, decoded to its end, or has no usable timestamps.
    """
    with opened(path) as container:
        stream = moving_picture(container)
        if stream is None:
            raise rejected("probe", "no_streams", "the container has no video stream")
        index = index_packets(container, stream)
    with opened(path) as container:
        stream = moving_picture(container)
        assert stream is not None  # the same file, a moment later
        clips = _encode_clips(container, stream, windows(index, policy), scratch, policy)
    return [_unit(clip, index, policy) for clip in clips]


def windows(index: PacketIndex, policy: CutPolicy) -> list[tuple[int, int]]:
    """[start, end) of each clip in ticks: whole clips end to end, or `max_clips` of them evenly spread.

    A video shorter than one clip is one clip; what is left behind the last whole clip is not taken.
    """
    ticks = max(1, round(policy.clip_s / Fraction(*index.time_base)))
    possible = max(1, (index.end_pts - index.start_pts) // ticks)
    n_clips = min(policy.max_clips, possible)
    starts = [index.start_pts + (clip * possible // n_clips) * ticks for clip in range(n_clips)]
    return [(start, start + ticks) for start in starts]


def _encode_clips(
    container: "InputContainer",
    stream: "VideoStream",
    spans: list[tuple[int, int]],
    scratch: Path,
    policy: CutPolicy,
) -> list["_Clip"]:
    """Decode everything, in order; frames inside a span go to that span's clip. Raises: Unusable."""
    import av

    stream.thread_count = 1
    clips: list[_Clip] = []
    waiting = list(reversed(spans))
    current: _Clip | None = None
    n_frames, last_pts = 0, None
    try:
        for frame in container.decode(stream):
            n_frames += 1
            pts = frame.dts if frame.pts is None else frame.pts
            if frame.is_corrupt:
                raise rejected("decode", "corrupt", f"frame {n_frames - 1} is damaged")
            if pts is None:
                raise rejected("decode", "no_timestamps", f"frame {n_frames - 1} has neither pts nor dts")
            if last_pts is not None and pts <= last_pts:
                continue  # shown at the same moment as the frame before: no place in a timeline
            last_pts = pts
            if current is not None and pts >= current.span[1]:
                current.finish()
                current = None
            while waiting and current is None and pts >= waiting[-1][0]:
                span = waiting.pop()
                if pts < span[1]:
                    current = _Clip(scratch / f"clip-{len(clips):04d}.mp4", span, stream, policy)
                    clips.append(current)
            if current is not None:
                current.add(frame, pts)
        if current is not None:
            current.finish()
    except av.error.FFmpegError as error:
        raise rejected("decode", "undecodable", f"after frame {n_frames}: {error.strerror}") from error
    finally:
        for clip in clips:
            clip.close()
    if not clips:
        raise rejected("decode", "no_frames", f"{n_frames} frames decoded, none with a place in time")
    return clips


class _Clip:
    """One clip being encoded into a scratch file."""

    def __init__(self, path: Path, span: tuple[int, int], stream: "VideoStream", policy: CutPolicy) -> None:
        assert stream.time_base is not None  # index_packets refused such a stream
        self.path, self.span = path, span
        self.pts: list[int] = []
        self.size_px = (0, 0)
        self._rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        self._time_base = stream.time_base
        self._filter = PictureFilter(stream, policy.short_side_px)
        self._output: Any = None
        self._encoder: Any = None

    def add(self, frame: "VideoFrame", pts: int) -> None:
        frame.pts = pts
        picture = self._filter.apply(frame)
        if self._output is None:
            self._open(picture)
        self.pts.append(pts)
        picture.pts = pts - self.pts[0]
        picture.time_base = self._time_base
        picture.pict_type = 0  # the source's I, P and B types are not the encoder's business
        self._output.mux(self._encoder.encode(picture))

    def finish(self) -> None:
        self._output.mux(self._encoder.encode(None))
        self.close()

    def close(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None

    def _open(self, picture: "VideoFrame") -> None:
        import av

        # The clip counts in the source's own ticks; the muxer would choose a multiple of them.
        options = {"movflags": "faststart", "video_track_timescale": str(self._time_base.denominator)}
        self._output = av.open(str(self.path), "w", format="mp4", options=options)
        self._encoder = self._output.add_stream("libx264", rate=self._rate, options=_X264)
        self.size_px = (picture.width, picture.height)
        self._encoder.width, self._encoder.height = self.size_px
        self._encoder.pix_fmt = "yuv420p"
        self._encoder.time_base = self._time_base
        context = self._encoder.codec_context
        context.time_base = self._time_base
        context.thread_count = 1
        context.color_range, context.colorspace = _MPEG_RANGE, _SMPTE170M


def _unit(clip: _Clip, index: PacketIndex, policy: CutPolicy) -> Unit:
    base = Fraction(*index.time_base)
    start, end = clip.pts[0], min(clip.span[1], index.end_pts)
    facts = {"time_base": list(index.time_base), "pts": clip.pts, "max_gop_frames": index.max_gop_frames}
    return Unit(
        start=at(start, index.time_base),
        end=at(end, index.time_base),
        fields={"mp4": clip.path, "json": {**facts, "policy": "canonical", "clip_s": policy.clip_s}},
        metadata={
            "width_px": clip.size_px[0],
            "height_px": clip.size_px[1],
            "n_frames": len(clip.pts),
            "start_s": float(start * base),
            "duration_s": float((end - start) * base),
        },
    )
