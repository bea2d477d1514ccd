"""Decode chosen frames of a video exactly: find them by timestamp, decode from the right keyframe, and check them.

Packets determine which frames are displayed, when, and which are keyframes. Each requested frame is decoded from its
keyframe on and identified by its packet, without frame rates or container seeks. Frames hidden by an edit list do not
count; two frames at one instant are rejected. One thread per decoder.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av
import av.filter
import numpy as np
from av.error import FFmpegError
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter
from google_crc32c import value as crc32c

from ...errors import DecodeFailed
from ...limits import MAX_CLIP_BYTES
from ..fields import Buffer, Place, is_machine_fault, nowhere
from ..image.crop import UPRIGHT, Bits, Box, CropGeometry, Framing, Size, apply_turn, nearest
from ..image.jpeg_header import check_scans
from .demux import ClipSource, Codec, WholeFile, whole_file
from .display_matrix import frame_matrix, turn_of_matrix
from .frame_pixels import FramePixels, frame_pixels, plane_samples
from .packet_decode import BarePackets, DecoderCache
from .packet_table import PacketTable
from .request import Choice
from .timeline import PacketGroup, Timeline

# AVCOL_SPC_UNSPECIFIED and AVCOL_RANGE_UNSPECIFIED in FFmpeg's libavutil/pixfmt.h.
_NO_MATRIX, _NO_RANGE = 2, 0
# Bilinear over the whole source area (swscale widens the filter when shrinking, which prevents aliasing). Without
# FULL_CHR_H_INT values are up to 2 levels too dark.
_RESIZE = int(
    Interpolation.BILINEAR
    | Interpolation.ACCURATE_RND
    | Interpolation.BITEXACT
    | Interpolation.FULL_CHR_H_INT
)
# Without a resize these flags would cost 8x: swscale's usual fast converter is used instead.
_CONVERT = int(Interpolation.BILINEAR)

# As numbers: PyAV takes twice as long with its own enumerations.
_ITU601, _LIMITED, _FULL = int(Colorspace.ITU601), int(ColorRange.MPEG), int(ColorRange.JPEG)

_ANY_TIME_BASE = Fraction(1, 1000)  # a filter graph needs one; frame times are not used here


class _Converters(threading.local):
    """A thread's converters: one per step, configured for the last sizes."""

    def __init__(self) -> None:
        self.resize = VideoReformatter()
        self.pack = VideoReformatter()
        self.convert = VideoReformatter()


_CONVERTERS = _Converters()


class ClipBuilder:
    """Takes a clip's frames one by one, in any order; `upright()` returns [T, H, W, C] as `pixels_of` describes.

    display_matrix: the stream's, () if it has none; None if the frames carry it. place: offers memory for an upright
    clip.
    """

    def __init__(
        self,
        n_frames: int,
        framing: Framing,
        display_matrix: tuple[int, ...] | None,
        place: Place = nowhere,
    ) -> None:
        self._n_frames = n_frames
        self._framing = framing
        self._place = place
        if display_matrix is None:
            self._turn = UPRIGHT
        else:
            self._turn = turn_of_matrix(display_matrix)
        self._turn_is_known = display_matrix is not None
        self._cropper: Cropper | None = None
        self._layout: tuple[Size, CropGeometry, np.ndarray] | None = None
        self._pixels: FramePixels | None = None
        self._out: np.ndarray | None = None

    def put(self, places: list[int], frame: av.VideoFrame) -> None:
        """Convert `frame` and store it at these positions in the clip.

        Raises: DecodeFailed if the size or the kind of samples differs from the first frame's, the rotation is not a
        quarter turn, or the crop does not fit.
        """
        if not self._turn_is_known:
            self._turn = turn_of_matrix(frame_matrix(frame))
            self._turn_is_known = True
        stored = (frame.height, frame.width)
        pixels = frame_pixels(frame.format.name, self._framing.bits)
        if self._pixels is None:
            self._pixels = pixels
        elif self._pixels != pixels:
            raise DecodeFailed(
                f"video: the frames change to {frame.format.name} within the clip; decode all to 8 bits with "
                "loader.video(bits=8)"
            )
        if self._layout is None or self._layout[0] != stored:
            layout = self._framing.layout(stored, self._turn)
            self._layout = stored, layout, self._allocate(layout.kept[2:], stored, pixels)
        _, layout, out = self._layout
        if pixels.stored:
            samples = plane_samples(frame, pixels.stored)
            out[places[0]] = nearest(samples, layout.source, layout.scaled, layout.kept)
            for place in places[1:]:
                out[place] = out[places[0]]
            return
        if layout.source != (0, 0, *stored):
            if self._cropper is None or not self._cropper.fits(frame):
                self._cropper = Cropper(frame, layout.source)
            frame = self._cropper.apply(frame)
        self._convert(frame, layout, out[places[0]], pixels.dtype.itemsize)
        for place in places[1:]:
            out[place] = out[places[0]]

    def upright(self) -> np.ndarray:
        if self._out is None:
            raise DecodeFailed("video: no frames were decoded")
        return apply_turn(self._out, self._turn)

    def _convert(self, frame: av.VideoFrame, layout: CropGeometry, out: np.ndarray, itemsize: int) -> None:
        height, width = layout.scaled
        packed, planar = ("rgb24", "gbrp") if itemsize == 1 else ("rgb48le", "gbrp16le")
        colour = {
            "src_colorspace": _ITU601 if frame.colorspace == _NO_MATRIX else None,
            "src_color_range": _range(frame),
        }
        if (frame.height, frame.width) == (height, width):
            picture = _CONVERTERS.convert.reformat(
                frame, format=packed, interpolation=_CONVERT, threads=1, **colour
            )
        else:
            # Planes are converted, then interleaved: the same values as rgb24 in half the time. (When enlarging, 1 in
            # 400 differs by 1, because swscale's rgb24 takes a shortcut.)
            planes = _CONVERTERS.resize.reformat(
                frame, width=width, height=height, format=planar, interpolation=_RESIZE, threads=1, **colour
            )
            picture = _CONVERTERS.pack.reformat(planes, format=packed, interpolation=_CONVERT, threads=1)
        top, left, high, wide = layout.kept
        plane: Any = picture.planes[0]
        rows = np.frombuffer(plane, f"<u{itemsize}").reshape(-1, plane.line_size // itemsize)  # with padding
        out.reshape(high, wide * 3)[:] = rows[top : top + high, left * 3 : (left + wide) * 3]

    def _allocate(self, size: tuple[int, ...], stored: Size, pixels: FramePixels) -> np.ndarray:
        height, width = size
        out = self._out
        if out is None:
            nbytes = self._n_frames * height * width * pixels.channels * pixels.dtype.itemsize
            if nbytes > MAX_CLIP_BYTES:
                raise DecodeFailed(
                    f"video: {self._n_frames} frames of {width} x {height} px take {nbytes} bytes, more than "
                    f"{MAX_CLIP_BYTES}; ask for fewer or smaller ones with loader.video",
                    what="frames",
                    given=nbytes,
                    accepted=MAX_CLIP_BYTES,
                )
            shape = (self._n_frames, height, width, pixels.channels)
            out = None
            if self._turn == UPRIGHT:
                out = self._place(shape, pixels.dtype)
            if out is None:
                out = np.empty(shape, pixels.dtype)
            self._out = out
        elif out.shape[1:3] != (height, width):
            raise DecodeFailed(
                f"video: the frame size changes from {out.shape[2]} x {out.shape[1]} to {stored[1]} x {stored[0]} px; "
                "give loader.video a size"
            )
        return out


class Cropper:
    """Cuts a box out of frames of one size and format with FFmpeg's crop filter, without copying."""

    def __init__(self, frame: av.VideoFrame, box: Box) -> None:
        """Create the filter. Raises: DecodeFailed if the box splits colour samples (4:2:0 has one per 2 x 2 px)."""
        top, left, height, width = box
        across = 16 // frame.format.chroma_width(16)
        down = 16 // frame.format.chroma_height(16)
        if left % across or top % down:
            raise DecodeFailed(
                f"video: in {frame.format.name} a crop that is resized begins at a multiple of {down} px down and "
                f"{across} px across, in stored pixels; got {top} and {left}",
                what="crop",
                given=[top, left],
                accepted=[down, across],
            )
        self._made_for = (frame.height, frame.width, frame.format.name)
        self._graph = av.filter.Graph()
        self._graph.threads = 1
        chain = [
            self._graph.add_buffer(
                width=frame.width, height=frame.height, format=frame.format, time_base=_ANY_TIME_BASE
            ),
            self._graph.add("crop", f"{width}:{height}:{left}:{top}:exact=1"),
            self._graph.add("buffersink"),
        ]
        for before, after in pairwise(chain):
            before.link_to(after)
        self._graph.configure()

    def fits(self, frame: av.VideoFrame) -> bool:
        return self._made_for == (frame.height, frame.width, frame.format.name)

    def apply(self, frame: av.VideoFrame) -> av.VideoFrame:
        self._graph.push(frame)
        cut: Any = self._graph.pull()
        picture: av.VideoFrame = cut
        return picture


def _range(frame: av.VideoFrame) -> int | None:
    """Return the colour range that an untagged YUV frame has; None for other frames."""
    if frame.color_range != _NO_RANGE or not frame.format.name.startswith("yuv"):
        return None
    if frame.format.name.startswith("yuvj"):
        return _FULL
    return _LIMITED


_DECODERS = DecoderCache()


def read_clip(
    data: Buffer,
    pick: Callable[[int], Sequence[int]],
    size: Size | None = None,
    bits: Bits | None = None,
) -> np.ndarray:
    """Return [T, H, W, C], upright: the frames that `pick(n_frames)` returns, in display order.

    size: (height, width) in px to resize to (bilinear over the whole source area); None keeps the stored size.
    bits: as for `loader.video`, which describes dtype and C.

    Raises: DecodeFailed if the file is not a video, is damaged, truncated or too large, or lacks timestamps; as `pick`.
    """
    with whole_file(data) as file:
        return decoded(file, pick(len(file.timeline)), Framing(size=size, bits=bits))


def read_whole(
    data: Mapping[str, Buffer],
    choose: Callable[[Mapping[str, Timeline]], Mapping[str, Choice]],
) -> dict[str, np.ndarray]:
    """Return the clips of one sample's videos: field -> [T, H, W, C] as `loader.video` describes.

    choose: maps field -> timeline to field -> choice. Raises: DecodeFailed; as `choose`.
    """
    with ExitStack() as stack:
        files: dict[str, WholeFile] = {
            name: stack.enter_context(whole_file(one)) for name, one in data.items()
        }
        chosen = choose({name: file.timeline for name, file in files.items()})
        return {
            name: decoded(file, chosen[name].frames, chosen[name].framing) for name, file in files.items()
        }


def read_bare(
    table: PacketTable,
    timeline: Timeline,
    bodies: Mapping[int, bytes | memoryview],
    frames: Sequence[int],
    framing: Framing,
    runs: Sequence[PacketGroup] | None = None,
    place: Place = nowhere,
) -> np.ndarray | None:
    """Return the same clip as `read_whole`, from the packets of `timeline.runs(frames)`; None: read the whole file.

    place: offers memory for the clip, whose content is undefined if None is returned. Raises: as `read_whole`.
    """
    try:
        source = BarePackets(table, timeline, bodies)
        clip = ClipBuilder(len(frames), framing, source.display_matrix, place)
        if runs is None:
            runs = timeline.runs(frames)
        use = source.use(runs)
        codec = (use and _DECODERS.take(use)) or source.codec()
        if any(_decode_packets(source, codec, run, clip) for run in runs):
            return None
        if use:
            _DECODERS.give_back(use, codec, codec.width * codec.height)
        return clip.upright()
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        if isinstance(error, DecodeFailed) or is_machine_fault(error):
            raise
        return None


def read_run(table: PacketTable, timeline: Timeline, data: Buffer, choice: Choice) -> np.ndarray:
    """Return [T, H, W, C] of a run, from all of its bytes.

    Raises: DecodeFailed if the bytes do not match the table, or the run cannot be decoded or is too large.
    """
    whole = memoryview(data)
    facts = table.facts
    if len(whole) != facts.nbytes or crc32c(bytes(whole)) != facts.crc32c or facts.whole_because:
        checksum = f"{crc32c(bytes(whole)):08x}"
        raise DecodeFailed(
            f"video: its packet table is of {facts.nbytes} bytes with the CRC-32C {facts.crc32c:08x}, and this run has "
            f"{len(whole)} with {checksum}{facts.whole_because and ', or ' + facts.whole_because}",
            what="packet table",
            given=[len(whole), checksum],
            accepted=[facts.nbytes, f"{facts.crc32c:08x}"],
        )
    places = zip(table.pos.tolist(), table.size.tolist(), strict=True)
    bodies = {number: whole[pos : pos + size] for number, (pos, size) in enumerate(places)}
    try:
        return decoded(BarePackets(table, timeline, bodies), choice.frames, choice.framing)
    except DecodeFailed:
        raise
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        if is_machine_fault(error):
            raise
        raise DecodeFailed(f"video: {type(error).__name__}: {error} ({len(whole)} bytes)") from error


def decoded(source: ClipSource, frames: Sequence[int], framing: Framing) -> np.ndarray:
    """Return uint8 [T, H, W, 3]: these frames of an open file, or of a run with all its packets.

    Raises: DecodeFailed; FFmpegError and other errors from av, which `whole_file` converts.
    """
    codec = source.codec()
    clip = ClipBuilder(len(frames), framing, source.display_matrix)
    for run in source.timeline.runs(frames):
        # A packet may be marked as a keyframe and be none: begin earlier, twice as far with each try.
        back = 1
        while (trouble := _decode_packets(source, codec, run, clip)) is not None:
            if run.first == 0:
                raise DecodeFailed(
                    f"video: {trouble} (decoded from the first packet to {run.stop - 1})",
                    what="frame",
                    given=trouble,
                )
            run = run._replace(first=source.timeline.keyframe(max(0, run.first - back)))
            back *= 2
    return clip.upright()


def _decode_packets(source: ClipSource, codec: Codec, run: PacketGroup, clip: ClipBuilder) -> str | None:
    """Put a run's requested frames into the clip. Return None if each was intact, else the error."""
    codec.flush_buffers()
    codec.reorder_depth = source.reorder_frames  # a flush may reset it, and frames would be dropped
    pts = source.timeline.pts
    missing = set(run.positions)
    # A packet may be marked as a keyframe and be none. Before the first packet of all there is none to try instead.
    has_keyframe = run.first == 0
    is_jpeg = codec.name == "mjpeg"
    try:
        for number in [*range(run.first, run.stop), None]:
            if number is None:
                packet = None  # makes the decoder return the frames that it holds back
            else:
                packet = source.packet(number)
            if is_jpeg and packet is not None:
                check_scans(bytes(packet))
            for frame in codec.decode(packet):
                origin = frame.pts  # number of the packet, which `source.packet` sets
                if origin is None or not run.first <= origin < run.stop:
                    continue
                if run.first > 0 and pts[origin] < pts[run.first]:
                    continue  # displayed before the keyframe: not requested, and may lack its reference
                if not has_keyframe and not frame.key_frame:
                    return f"packet {run.first} is marked as a keyframe and is none"
                has_keyframe = True
                if frame.is_corrupt:
                    return f"the frame at timestamp {pts[origin]} is damaged"
                if origin in missing:
                    clip.put(run.positions[origin], frame)
                    missing.discard(origin)
    except FFmpegError as error:
        if is_machine_fault(error):
            raise
        return f"{type(error).__name__}: {error}"
    if missing:
        return f"no frame came back for timestamp {min(pts[n] for n in missing)}"
    return None
