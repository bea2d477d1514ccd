"""Chosen frames of a video, exactly: found by timestamp, decoded from the right keyframe, and checked.

The packets say which frames are displayed, when, and which are keyframes. The wanted frames' packets go to the decoder
from their keyframe on. No frame rate is used, no container seek trusted, and each frame is known by its packet. So the
result equals, bit for bit, a decode from the start, from a whole file or single packets. Frames hidden by an edit list
do not count; two frames at one instant are refused. One thread per decoder.
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
from .demux import Codec, Source, WholeFile, whole_file
from .frames import ClipBuilder
from .packet_decode import BarePackets, DecoderCache
from .packet_table import PacketTable
from .request import Choice
from .timeline import Run, Timeline

_DECODERS = DecoderCache()


def read_clip(data: Buffer, pick: Callable[[int], Sequence[int]], size: Size | None = None) -> np.ndarray:
    """Return uint8 [T, H, W, 3] RGB, upright: the frames that `pick(n_frames)` names, in display order.

    size: (height, width) in px to resize to (bilinear over the whole source area), or None.

    Raises: DecodeFailed (no video, damaged, truncated, no timestamps, too large), and the errors of `pick`.
    """
    with whole_file(data) as file:
        return decoded(file, pick(len(file.timeline)), Framing(size=size))


def read_whole(
    data: Mapping[str, Buffer],
    choose: Callable[[Mapping[str, Timeline]], Mapping[str, Choice]],
) -> dict[str, np.ndarray]:
    """Return the clips of several videos of one sample: field -> uint8 [T, H, W, 3].

    choose: field -> timeline to field -> choice. Raises: DecodeFailed, and what `choose` raises.
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
    runs: Sequence[Run] | None = None,
    place: Place = nowhere,
) -> np.ndarray | None:
    """Return the same clip from the packets of `timeline.runs(frames)`; None: read the file whole.

    place: memory for the clip, undefined without one. Raises: DecodeFailed, as `read_whole`.
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

    Raises: DecodeFailed (bytes of another file than the table's, a run that cannot be decoded, too large).
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


def decoded(source: Source, frames: Sequence[int], framing: Framing) -> np.ndarray:
    """Return uint8 [T, H, W, 3] of these frames of an open file, or of all packets of a run.

    Each run is decoded from further back while frames are missing or damaged: some containers mark frames "keyframe"
    that build on others. Raises: DecodeFailed; FFmpegError and other errors of av, which `whole_file` converts.
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


def _attempt(source: Source, codec: Codec, run: Run, clip: ClipBuilder) -> str | None:
    """Return None when each wanted frame came back intact, else the fault."""
    codec.flush_buffers()
    codec.reorder_depth = source.reorder_frames  # a flush may forget it, and frames would be dropped
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
                came = frame.pts  # the number of its packet
                if came is None or not run.first <= came < run.stop:
                    continue
                if run.first > 0 and pts[came] < pts[run.first]:
                    continue  # displayed before the keyframe: not wanted, and may lack what it builds on
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
