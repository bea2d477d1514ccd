"""Open media containers, find their streams and check their ends; detect faults of this machine."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from loader.errors import DecodeFailed, StoreError
from loader.modalities.fields import is_machine_fault, is_ours
from loader.modalities.video.container_checks import check_file_tables
from loader.storage.disk.scratch import no_room
from penstock.compute.pool import is_fault

from .unit import Kind, Unusable, not_supported, rejected

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.error import FFmpegError
    from av.packet import Packet
    from av.video.stream import VideoStream

_OURS = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)

DEMUXERS = (
    *("mov", "mp4", "matroska", "webm", "avi", "flv", "live_flv", "mpeg", "mpegts", "ogg"),
    *("wav", "w64", "flac", "mp3", "aac", "amr", "amrnb", "amrwb", "aiff", "caf", "asf", "ac3", "eac3"),
    *("mxf", "dv"),
    *("jpeg_pipe", "mjpeg", "png_pipe", "apng", "bmp_pipe", "tiff_pipe", "webp_pipe", "gif", "gif_pipe"),
    "image2",  # chosen by file name, which is ours
)
"""Demuxers of accepted types; FFmpeg would try all, even playlists that open other files."""

ALONE = {"format_whitelist": ",".join(DEMUXERS), "protocol_whitelist": "file"}
"""FFmpeg options that keep it from opening any other file."""

_COUNTED = ("mov", "mp4")  # formats whose header states each stream's packet count; elsewhere it is a guess

# Formats whose header states the duration; mp3 and ogg estimate it from the size, asf and mxf state sizes.
_TIMED = ("mov", "mp4", "matroska", "webm", "wav", "flac", "w64", "aiff", "caf", "flv")

_UNPLACED = re.compile(r"\d+ channels")

TAIL_S = 1.0
"""Most seconds by which a header's duration may be rounded."""

# A header may round by so many seconds, by this share of its duration, or by 1.5 times the longest frame step.
_LEAST_TAIL_S, _TAIL_SHARE = 0.1, 0.02

MAX_GAP_S = 86_400
"""Most seconds between frames; more is damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketIndex:
    """Facts of a video stream from reading all its packets."""

    n_packets: int
    """Number of packets, hidden ones included."""
    start_pts: int
    """Start of the first shown frame, in ticks."""
    end_pts: int
    """End of the last shown frame, in ticks, exclusive."""
    time_base: tuple[int, int]
    """Seconds per tick: (numerator, denominator)."""
    max_gop_frames: int
    """Most packets from one keyframe to the next."""
    n_discard: int = 0
    """Number of packets whose frames are hidden."""
    n_keyframes: int = 0
    """Number of keyframes."""
    has_b_frames: bool = False
    """True if decode order differs from display order."""
    tail_missing_s: float = 0.0
    """Seconds by which the file ends before its stated duration."""

    @property
    def duration_s(self) -> float:
        return float((self.end_pts - self.start_pts) * Fraction(*self.time_base))


@contextmanager
def open_container(path: str) -> Iterator["InputContainer"]:
    """Yield the container at `path`. Raises: Unusable for FFmpeg errors, also inside the block."""
    import av

    try:
        with open(path, "rb") as file:
            check_file_tables(file)
    except DecodeFailed as error:
        raise rejected("probe", "bad_header", error) from error
    try:
        with av.open(path, options=dict(ALONE)) as container:
            yield container
    except av.error.FFmpegError as error:
        text = error.strerror  # str(error) includes the scratch path
        raise ffmpeg_refusal(error, path, "probe", "unreadable", text) from error
    except (OverflowError, UnicodeDecodeError) as error:  # header fields out of range
        raise rejected("probe", "bad_header", error) from error


def ffmpeg_refusal(
    error: "FFmpegError",
    path: str,
    stage: str,
    code: str,
    text: object,
    at_frame: int | None = None,
) -> Unusable:
    """Return an FFmpeg error as a refusal: damaged, or not supported.

    at_frame: frames or samples decoded before. Raises: StoreError or the error itself, see `check_machine`.
    """
    from av import error as errors

    check_machine(error, path)
    missing = (errors.PatchWelcomeError, errors.NotImplementedError, errors.DecoderNotFoundError)
    if isinstance(error, missing) and not at_frame:
        return not_supported(stage, "not_implemented", f"FFmpeg has no decoder for it: {text}")
    return rejected(stage, code, text, at_frame)


def check_scratch(error: Exception, scratch: Path | str) -> None:
    """Check that scratch space did not cause the error. Raises: StoreError if it did."""
    if getattr(error, "errno", None) in _OURS:
        raise scratch_error(error, scratch) from error


def scratch_error(error: Exception, scratch: Path | str) -> StoreError:
    """Return the error for scratch space that is full or read-only."""
    meanwhile = "while media were cut; nothing of this object was kept"
    room_for = "the raw object and its samples"
    return no_room(scratch, error, meanwhile, room_for=room_for, again="run the batch again")


def check_machine(error: Exception, path: str) -> None:
    """Raise StoreError if scratch space caused the error, the error itself for another fault of this machine."""
    check_scratch(error, Path(path).parent)
    lacks_memory = isinstance(error, MemoryError) and is_machine_fault(error)
    if lacks_memory or is_ours(error) or is_fault(error):
        raise error


def kind_inside(path: str) -> Kind:
    """Return 'video' if there is a video stream (cover art does not count), else 'audio'. Raises: Unusable."""
    with open_container(path) as container:
        if (stream := first_video(container)) is not None:
            _check_not_asf(container, stream)
            return "video"
        if container.streams.audio:
            return "audio"
    raise rejected("probe", "no_streams", "the container has neither a video nor an audio stream")


def _check_not_asf(container: "InputContainer", stream: "VideoStream") -> None:
    if container.format.name == "asf":  # its decoders pass over damage silently
        raise not_supported(
            "probe",
            "not_supported",
            f"Windows Media video ({stream.codec_context.name}) is not supported; store it as MP4: "
            "ffmpeg -i FILE -c:v libx264 -crf 18 out.mp4",
        )


def first_video(container: "InputContainer") -> "VideoStream | None":
    """Return the first video stream that is not cover art. Raises: Unusable if there is no decoder for it."""
    from av.stream import Disposition

    covers = Disposition.attached_pic
    video = next((stream for stream in container.streams.video if not stream.disposition & covers), None)
    # The stubs promise a codec context; a stream of an unknown codec has none.
    if video is not None and cast("Any", video.codec_context) is None:
        raise not_supported(
            "probe", "unknown_codec", "there is no decoder for the picture here; store it as H.264"
        )
    return video


def first_audio(container: "InputContainer") -> "AudioStream | None":
    """Return the first audio stream that can be decoded, or None."""
    # The stubs promise a codec context; a stream of an unknown codec has none.
    known = [stream for stream in container.streams.audio if cast("Any", stream.codec_context) is not None]
    if known:
        return known[0]
    return None


def require_audio(container: "InputContainer") -> "AudioStream":
    """Return the first decodable audio stream. Raises: Unusable if there is none."""
    stream = first_audio(container)
    if stream is None and container.streams.audio:
        raise not_supported(
            "probe", "unknown_codec", "there is no decoder for the sound here; store it as FLAC"
        )
    if stream is None:
        raise rejected("probe", "no_streams", "the container has no audio stream")
    return stream


def demux_packets(
    container: "InputContainer", *streams: "VideoStream | AudioStream"
) -> Iterator["Packet[Any]"]:
    """Yield every packet of these streams (default: all), and an empty one at each end."""
    # A transport stream may add a stream in mid-file: PyAV 18's demux then raises IndexError once and can continue.
    ended: set[int] = set()
    expected = {stream.index for stream in streams} or {stream.index for stream in container.streams}
    while not expected <= ended:
        try:
            for packet in container.demux(*streams):
                if packet.dts is None and not packet.size:
                    number = packet.stream.index  # an empty packet's own `stream_index` is always 0
                    if number in ended:
                        continue
                    ended.add(number)
                yield packet
            return
        except IndexError:
            continue


def index_packets(container: "InputContainer", stream: "VideoStream") -> PacketIndex:
    """Read every packet once. Raises: Unusable without any, or if the file is truncated."""
    counter = _PacketCounter()
    ends: dict[int, tuple[int, Fraction]] = {}  # stream index -> last tick, seconds per tick
    for packet in demux_packets(container):
        if packet.pts is None and packet.dts is None:
            continue  # the empty packet that ends each stream
        if packet.pts is None:
            pts = packet.dts
        else:
            pts = packet.pts
        assert pts is not None  # for the type checker: one of the two is set
        end = pts + (packet.duration or 0)
        latest, tick_s = ends.get(packet.stream_index) or (end, packet.time_base or Fraction(1))
        ends[packet.stream_index] = max(latest, end), tick_s
        if packet.stream_index != stream.index:
            continue
        if packet.is_corrupt:  # only this reveals a truncated fragment
            raise rejected(
                "probe",
                "truncated",
                f"packet {counter.n} of the video ends before its last byte",
                where=f"packet {counter.n}",
            )
        counter.add(pts, end, packet.is_keyframe, packet.is_discard)
    if counter.first is None or stream.time_base is None:
        raise rejected("probe", "no_frames", "the video stream has no packets")
    hidden_s = float((counter.latest - counter.earliest - (counter.end - counter.first)) * stream.time_base)
    if hidden_s > MAX_GAP_S:
        raise rejected(
            "probe",
            "timestamps",
            f"hidden packets lie {hidden_s:.0f} s before or after the shown frames",
            given=hidden_s,
            accepted=MAX_GAP_S,
        )
    last_s = max((float(latest * tick_s) for latest, tick_s in ends.values()), default=0.0)
    _check_count(container, stream, counter.n)
    step_s = float(counter.longest_step * (stream.time_base or 0))
    missing_s = check_duration(container, max(0.0, last_s), step_s)
    return PacketIndex(
        n_packets=counter.n,
        start_pts=counter.first,
        end_pts=max(counter.end, counter.first + 1),
        time_base=(stream.time_base.numerator, stream.time_base.denominator),
        max_gop_frames=counter.max_gop,
        n_discard=counter.n_discard,
        n_keyframes=counter.n_keyframes,
        has_b_frames=counter.has_b_frames,
        tail_missing_s=missing_s,
    )


class _PacketCounter:
    """Statistics of one stream's packets, in decode order. Start and end ignore hidden packets."""

    def __init__(self) -> None:
        self.n = self.n_discard = self.n_keyframes = self.end = self.max_gop = self._since_key = 0
        self.longest_step = 0
        self.first: int | None = None
        self.earliest = self.latest = 0
        self.has_b_frames = False
        self._newest: int | None = None

    def add(self, pts: int, end: int, is_keyframe: bool, is_discard: bool) -> None:
        self.earliest, self.latest = (
            (min(pts, self.earliest), max(end, self.latest)) if self.n else (pts, end)
        )
        self.n += 1
        self.n_discard += is_discard
        self.n_keyframes += is_keyframe
        if is_keyframe:
            self._since_key = 1
        else:
            self._since_key = self._since_key + 1
        self.max_gop = max(self.max_gop, self._since_key)
        self.has_b_frames = self.has_b_frames or (self._newest is not None and pts < self._newest)
        if self._newest is not None:
            self.longest_step = max(self.longest_step, pts - self._newest)
        if self._newest is None:
            self._newest = pts
        else:
            self._newest = max(pts, self._newest)
        if not is_discard:
            if self.first is None:
                self.end = end
            else:
                self.end = max(self.end, end)
            if self.first is None:
                self.first = pts
            else:
                self.first = min(self.first, pts)


def _check_count(container: "InputContainer", stream: "VideoStream", n_packets: int) -> None:
    names = container.format.name.split(",")
    if stream.frames > n_packets and any(name in _COUNTED for name in names):
        raise rejected(
            "probe",
            "truncated",
            f"the header announces {stream.frames} frames, the file holds {n_packets}",
            where="frames",
            given=n_packets,
            accepted=stream.frames,
        )


def check_duration(container: "InputContainer", found_s: float, step_s: float = 0.0) -> float:
    """Return how many seconds earlier than announced the file ends; 0 if no duration is announced.

    found_s: end of the file. step_s: longest frame step; both in seconds. Raises: Unusable if rounding cannot explain
    it.
    """
    names = container.format.name.split(",")
    if container.duration is None or not any(name in _TIMED for name in names):
        return 0.0
    # Matroska's duration counts from 0, the others' from the first frame.
    if "matroska" in names:
        start = 0
    else:
        start = container.start_time or 0
    announced_s = (start + container.duration) / 1_000_000
    rounding_s = min(TAIL_S, max(_LEAST_TAIL_S, _TAIL_SHARE * announced_s, 1.5 * step_s))
    if announced_s - found_s > rounding_s:
        raise rejected(
            "probe",
            "truncated",
            f"the header announces {announced_s:.2f} s, the file ends at {found_s:.2f} s",
            where="duration",
            given=found_s,
            accepted=announced_s,
        )
    return max(0.0, announced_s - found_s)


def container_facts(container: "InputContainer") -> dict[str, Any]:
    """Return the media columns that every container has."""
    return {
        "container": container.format.name,
        "n_streams": len(container.streams),
        "header_duration_s": None if container.duration is None else container.duration / 1_000_000,
    }


def audio_facts(stream: "AudioStream") -> dict[str, Any]:
    """Return the media columns from an audio stream's header."""
    return {
        "audio_codec": stream.codec_context.name,
        "sample_rate_hz": stream.rate,
        "channels": stream.channels,
        "channel_layout": None if _UNPLACED.fullmatch(stream.layout.name) else stream.layout.name,
    }
