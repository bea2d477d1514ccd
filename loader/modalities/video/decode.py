"""Decode chosen frames of a video exactly: find them by timestamp, decode from the right keyframe, and check them.

Packets determine which frames are displayed, when, and which are keyframes. Each requested frame is decoded from its
keyframe on and identified by its packet, without frame rates or container seeks. So the result equals, bit for bit, a
decode from the start. Frames hidden by an edit list do not count; two frames at one instant are rejected. One thread
per decoder.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from av.error import FFmpegError
from google_crc32c import value as crc32c

from ...errors import DecodeFailed
from ..fields import Buffer, Place, is_of_the_machine, nowhere
from ..image.crop import Framing, Size
from ..image.jpeg_header import check_scans
from .demux import ClipSource, Codec, WholeFile, whole_file
from .frames import ClipBuilder
from .packet_decode import BarePackets, DecoderCache
from .packet_table import PacketTable
from .request import Choice
from .timeline import PacketGroup, Timeline

_DECODERS = DecoderCache()


def read_clip(data: Buffer, pick: Callable[[int], Sequence[int]], size: Size | None = None) -> np.ndarray:
    """Return uint8 [T, H, W, 3] RGB, upright: the frames that `pick(n_frames)` returns, in display order.

    size: (height, width) in px to resize to (bilinear over the whole source area); None keeps the stored size.

    Raises: DecodeFailed if the file is not a video, is damaged, truncated or too large, or lacks timestamps; as `pick`.
    """
    with whole_file(data) as file:
        return decoded(file, pick(len(file.timeline)), Framing(size=size))


def read_whole(
    data: Mapping[str, Buffer],
    choose: Callable[[Mapping[str, Timeline]], Mapping[str, Choice]],
) -> dict[str, np.ndarray]:
    """Return the clips of one sample's videos: field -> uint8 [T, H, W, 3].

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
        runs = timeline.runs(frames) if runs is None else runs
        use = source.use(runs)
        codec = (use and _DECODERS.take(use)) or source.codec()
        if any(_attempt(source, codec, run, clip) for run in runs):
            return None
        if use:
            _DECODERS.give_back(use, codec, codec.width * codec.height)
        return clip.upright()
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        if isinstance(error, DecodeFailed) or is_of_the_machine(error):
            raise
        return None


def read_run(table: PacketTable, timeline: Timeline, data: Buffer, choice: Choice) -> np.ndarray:
    """Return uint8 [T, H, W, 3] of a run, from all of its bytes.

    Raises: DecodeFailed if the bytes do not match the table, or the run cannot be decoded or is too large.
    """
    whole, facts = memoryview(data), table.facts
    if len(whole) != facts.nbytes or crc32c(bytes(whole)) != facts.crc32c or facts.whole_because:
        raise DecodeFailed(
            f"video: its packet table is of {facts.nbytes} bytes with the CRC-32C {facts.crc32c:08x}, and this run has "
            f"{len(whole)} with {crc32c(bytes(whole)):08x}{facts.whole_because and ', or ' + facts.whole_because}"
        )
    places = zip(table.pos.tolist(), table.size.tolist(), strict=True)
    bodies = {number: whole[pos : pos + size] for number, (pos, size) in enumerate(places)}
    try:
        return decoded(BarePackets(table, timeline, bodies), choice.frames, choice.framing)
    except DecodeFailed:
        raise
    except (FFmpegError, ValueError, LookupError, MemoryError, OverflowError) as error:
        if is_of_the_machine(error):
            raise
        raise DecodeFailed(f"video: {type(error).__name__}: {error} ({len(whole)} bytes)") from error


def decoded(source: ClipSource, frames: Sequence[int], framing: Framing) -> np.ndarray:
    """Return uint8 [T, H, W, 3]: these frames of an open file, or of a run with all its packets.

    While frames are missing or damaged, decoding restarts from an earlier keyframe: some containers mark dependent
    frames as keyframes. Raises: DecodeFailed; FFmpegError and other errors from av, which `whole_file` converts.
    """
    codec, clip = source.codec(), ClipBuilder(len(frames), framing, source.display_matrix)
    for run in source.timeline.runs(frames):
        back = 1
        while (trouble := _attempt(source, codec, run, clip)) is not None:
            if run.first == 0:
                raise DecodeFailed(f"video: {trouble} (decoded from the first packet to {run.stop - 1})")
            run = run._replace(first=source.timeline.keyframe(max(0, run.first - back)))
            back *= 2
    return clip.upright()


def _attempt(source: ClipSource, codec: Codec, run: PacketGroup, clip: ClipBuilder) -> str | None:
    """Return None if every requested frame was decoded intact, else the error."""
    codec.flush_buffers()
    codec.reorder_depth = source.reorder_frames  # a flush may reset it, and frames would be dropped
    pts = source.timeline.pts
    missing = set(run.positions)
    entered = run.first == 0
    is_jpeg = codec.name == "mjpeg"
    try:
        for number in [*range(run.first, run.stop), None]:
            packet = None if number is None else source.packet(number)
            if is_jpeg and packet is not None:
                check_scans(bytes(packet))
            for frame in codec.decode(packet):
                came = frame.pts  # the packet's number
                if came is None or not run.first <= came < run.stop:
                    continue
                if run.first > 0 and pts[came] < pts[run.first]:
                    continue  # displayed before the keyframe: not requested, and may lack its reference
                if not entered and not frame.key_frame:
                    return f"packet {run.first} is marked as a keyframe and is none"
                entered = True
                if frame.is_corrupt:
                    return f"the frame at timestamp {pts[came]} is damaged"
                if came in missing:
                    clip.put(run.positions[came], frame)
                    missing.discard(came)
    except FFmpegError as error:
        if is_of_the_machine(error):
            raise
        return f"{type(error).__name__}: {error}"
    return f"no frame came back for timestamp {min(pts[n] for n in missing)}" if missing else None
