"""Compare clips with their video: every frame's time exactly, and the content of two frames of one clip."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

import loader
from loader.modalities.video.packet_table import read_packets

from ..container import first_video, open_container
from ..unit import Unit, Unusable
from ..video.colour import display_matrix, is_hdr
from ..video.spans import PACKETS_FIELD
from ..video.timestamps import has_display_times, time_frames
from . import findings
from .findings import Grid, Misreading, compare, finding, frame_planes, pixel_grid, turned

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_N_NEIGHBOURS = 3  # per side; B-frames shift a wrong time by at most so many

_MIN_CORRELATION = 0.7  # lowest correlation of lightness with a tone-mapped image


class SourceFrame(NamedTuple):
    """Source frame with the grids of its neighbours."""

    frame: "VideoFrame"
    """Decoded frame."""
    aspect: Fraction
    """Pixel aspect ratio."""
    neighbours: list[Grid]
    """Grids of the frames before and after."""
    n_neighbours: int
    """Number of neighbours to collect."""
    size_px: tuple[int, int] | None
    """(width, height) at which colours are clipped; None clips cell means."""


def audit_clips(path: str, units: Sequence[Unit], n_frames_decoded: int | None) -> None:
    """Audit all clips of one video. n_frames_decoded: count from its audit. Raises: Unusable, named after the fault."""
    with open_container(path) as container:
        stream = first_video(container)
        assert stream is not None  # it was cut
        has_times = has_display_times(container)
        times = _packet_times(container, stream)
    # Some packets of a damaged video yield no frame.
    is_complete = n_frames_decoded == len(times)
    shown_times = None
    if has_times:  # else packets have decoding times, in another order
        shown_times = times
    for unit in units:
        stored, base = clip_times(unit)
        check_times(unit, stored, base, shown_times, is_complete)
    # One clip only: its frames cost a decode of the source.
    if units:
        middle = units[len(units) // 2]
        _check_frames(path, middle)


def check_times(
    unit: Unit,
    stored: Sequence[int],
    base: Fraction,
    source: Sequence[int] | None,
    is_complete: bool,
) -> None:
    """Check that the clip has exactly its source's frames, at their times.

    stored: its frame times in ticks of `base`. source: times of the shown packets, None without display times. Both
    ascend.
    is_complete: every shown packet decodes to a frame. Raises: Unusable.
    """
    facts = unit.fields["json"]
    cut: list[int] = facts["pts"]
    source_base = Fraction(*facts["time_base"])
    if len(stored) != len(cut):
        raise finding(findings.FRAMES_MISSING, f"{len(stored)} frames stored, {len(cut)} cut")
    # Convert both to a common tick, so that times are integers.
    second = source_base.denominator * base.denominator
    expected_tick = source_base.numerator * base.denominator
    stored_tick = base.numerator * source_base.denominator
    expected = [(pts - cut[0]) * expected_tick for pts in cut]
    actual = [(ticks - stored[0]) * stored_tick for ticks in stored]
    if expected != actual:
        if _is_even(actual) and not _is_even(expected):
            name = findings.VFR
        else:
            name = findings.TIMESTAMPS
        first = 0
        while actual[first] == expected[first]:
            first += 1
        stored_s = actual[first] / second
        expected_s = expected[first] / second
        raise finding(
            name,
            f"frame {first} is stored {stored_s:.6f} s after the first, the source has it {expected_s:.6f} s after",
        )
    if any(later <= earlier for earlier, later in pairwise(cut)):
        raise finding(findings.TIMESTAMPS, "the times of the frames do not ascend")
    if source is None:
        return
    inside = source[bisect_left(source, cut[0]) : bisect_right(source, cut[-1])]
    strange = sorted(set(cut) - set(inside))
    if strange:
        raise finding(
            findings.TIMESTAMPS, f"the source shows nothing at {strange[0]} ({len(strange)} such times)"
        )
    if is_complete and len(set(inside)) != len(cut):
        raise finding(
            findings.FRAMES_MISSING,
            f"the source shows {len(set(inside))} frames there, the clip has {len(cut)}",
        )


def clip_times(unit: Unit) -> tuple[list[int], Fraction]:
    """Return a stored clip's frame times in ticks, ascending, and the tick in seconds.

    Uses the packet table, or the clip itself if that does not belong to it.
    """
    mp4: Path = unit.fields["mp4"]
    table = read_packets(unit.fields[PACKETS_FIELD].read_bytes())
    data = mp4.read_bytes()
    if (table.facts.nbytes, table.facts.crc32c) == (len(data), crc32c(data)):
        shown = table.pts[~table.discard]
        return np.sort(shown).tolist(), table.facts.time_base
    with open_container(str(mp4)) as container:
        stream = container.streams.video[0]
        return _packet_times(container, stream), Fraction(stream.time_base or 1)


def _packet_times(container: "InputContainer", stream: "VideoStream") -> list[int]:
    """Return the times of a video's shown packets in ticks, ascending."""
    shown = [packet for packet in container.demux(stream) if not packet.is_discard]
    return sorted(packet.pts for packet in shown if packet.pts is not None)


def _is_even(times: Sequence[int]) -> bool:
    """Return whether all times are equally far apart."""
    gaps = {later - earlier for earlier, later in pairwise(times)}
    return len(gaps) <= 1


def _check_frames(path: str, unit: Unit) -> None:
    """Compare the first and the middle frame of a clip with the source's. Raises: Unusable."""
    mp4 = unit.fields["mp4"].read_bytes()
    times: list[int] = unit.fields["json"]["pts"]
    numbers = sorted({0, len(times) // 2})
    stored: dict[int, np.ndarray[Any, Any]] = {}
    for number in numbers:
        decoder = loader.video(frames=1, start=number, bits=8)
        stored[times[number]] = decoder(mp4)[0]
    height, width = stored[times[0]].shape[:2]
    size_px = (width, height)
    # The cheapest comparison first; only a frame that fails all four differs.
    attempts = [
        (_seek_frames, None),
        (_seek_frames, size_px),
        (_decode_frames, None),
        (_decode_frames, size_px),
    ]
    for frames, clip_size_px in attempts:
        source = frames(path, sorted(stored), clip_size_px)
        try:
            for number, pts in zip(numbers, sorted(stored), strict=True):
                _check_frame(stored[pts], source.get(pts), f"frame {number}")
        except Unusable:
            if (frames, clip_size_px) == attempts[-1]:
                raise
        else:
            return


def _check_frame(pixels: "np.ndarray[Any, Any]", source: SourceFrame | None, where: str) -> None:
    if source is None:
        raise finding(findings.WRONG_FRAME, f"{where}: the source shows no frame at its time")
    frame = source.frame
    turn = display_matrix(source.frame)
    height, width = pixels.shape[:2]
    shape = (float(frame.width * source.aspect), float(frame.height))
    if is_sideways(turn):
        shape = shape[::-1]
    check_aspect((width, height), shape, where)
    actual = pixel_grid(pixels)
    stored = _colours(frame, source.size_px)
    expected = upright(stored, turn)
    if is_hdr(frame):
        check_structure(actual, expected, where)
        return
    readings = [Misreading(findings.WRONG_FRAME, upright(grid, turn)) for grid in source.neighbours]
    for turns in range(4):
        if turns:
            readings.append(Misreading(findings.ROTATION, turned(expected, turns, False)))
        readings.append(Misreading(findings.ROTATION, turned(expected, turns, True)))
    planes = frame_planes(frame, _own_size(frame, source.size_px))
    if planes is not None:
        other_range = planes.with_other_range().rgb()
        other_matrix = planes.with_other_matrix().rgb()
        squeezed = _squeeze(planes.rgb())
        readings += [
            Misreading(findings.COLOUR_RANGE, upright(other_range, turn)),
            Misreading(findings.COLOUR_MATRIX, upright(other_matrix, turn)),
            Misreading(findings.COLOUR_RANGE, upright(squeezed, turn)),
        ]
    compare(actual, expected, readings, where)


def _squeeze(grid: Grid) -> Grid:
    """Return full-range values as if misread as limited range."""
    return np.clip((grid - 16) * 255 / 219, 0, 255)


def check_aspect(size_px: tuple[int, int], shape: tuple[float, float], where: str) -> None:
    """Check a stored (width, height) against the source's ratio, with sides rounded to even numbers.

    Raises: Unusable.
    """
    width, height = size_px
    source_width, source_height = shape
    slack = 1.5 / width + 1.5 / height  # rounding to even numbers moves each side by up to 1.5 px
    ratio = width / height * source_height / source_width
    if abs(ratio - 1) > slack:
        raise finding(
            findings.ASPECT_RATIO,
            f"{where}: {width} x {height} px stored of a picture that is {source_width:.0f} x {source_height:.0f}",
        )


def check_structure(actual: Grid, expected: Grid, where: str) -> None:
    """Check that light areas stay light where tone mapping changes colours. Raises: Unusable."""
    first = actual.mean(axis=-1).ravel()
    second = expected.mean(axis=-1).ravel()
    if min(first.std(), second.std()) < findings.SAME_LEVELS:
        return
    correlation = float(np.corrcoef(first, second)[0, 1])
    if correlation < -_MIN_CORRELATION:
        raise finding(findings.INVERTED, f"{where}: light and dark changed places")
    if correlation < _MIN_CORRELATION:
        raise finding(findings.PIXELS, f"{where}: correlates {correlation:.2f} with its source")


def _colours(frame: "VideoFrame", size_px: tuple[int, int] | None) -> Grid:
    planes = frame_planes(frame, _own_size(frame, size_px))
    if planes is None:
        return pixel_grid(frame.to_ndarray(format="rgb24", threads=1))
    return planes.rgb()


def _own_size(frame: "VideoFrame", size_px: tuple[int, int] | None) -> tuple[int, int] | None:
    if size_px is not None and is_sideways(display_matrix(frame)):
        return size_px[::-1]
    return size_px


def is_sideways(matrix: tuple[int, ...] | None) -> bool:
    return matrix is not None and abs(matrix[1]) > abs(matrix[0])


def upright(grid: Grid, matrix: tuple[int, ...] | None) -> Grid:
    """Move each cell from (x, y) to (a x + c y, b x + d y) by the display matrix (ISO/IEC 14496-12, 6.2.2)."""
    if matrix is None:
        return grid
    # Fixed point with 16 bits after the point; only the signs of quarter turns and mirrors matter.
    a, b, _, c, d = np.sign(np.round(np.array(matrix[:5]) / 65536))
    last = len(grid) - 1
    rows, columns = np.indices(grid.shape[:2])  # [16, 16] each
    # Odd offsets from the middle, so that a turn is a product.
    y = 2 * rows - last
    x = 2 * columns - last
    to_x = a * x + c * y
    to_y = b * x + d * y
    to_row = ((to_y + last) // 2).astype(int)
    to_column = ((to_x + last) // 2).astype(int)
    out = np.empty_like(grid)
    out[to_row, to_column] = grid
    return out


def _seek_frames(path: str, times: Sequence[int], size_px: tuple[int, int] | None) -> dict[int, SourceFrame]:
    """Return time -> frame, decoded from the keyframe before the first time; {} if the video cannot be sought."""
    import av

    with open_container(path) as container:
        stream = first_video(container)
        if stream is None or not has_display_times(container):
            return {}
        stream.thread_count = 1
        try:
            container.seek(times[0], stream=stream, backward=True)
            frames = ((frame, frame.pts) for frame in container.decode(stream))
            return _locate_frames(frames, times, stream, size_px)
        except av.error.FFmpegError:
            return {}  # not seekable: the caller then decodes from the start


def _decode_frames(
    path: str, times: Sequence[int], size_px: tuple[int, int] | None
) -> dict[int, SourceFrame]:
    """Return time -> frame, decoded from the video's beginning, as a cut does."""
    with open_container(path) as container:
        stream = first_video(container)
        assert stream is not None  # it was cut
        stream.thread_count = 1
        frames = time_frames(container, container.decode(stream))
        return _locate_frames(((timed.frame, timed.pts) for timed in frames), times, stream, size_px)


def _locate_frames(
    frames: "Iterator[tuple[VideoFrame, int | None]]",
    times: Sequence[int],
    stream: "VideoStream",
    size_px: tuple[int, int] | None,
) -> dict[int, SourceFrame]:
    """Return the frame of each time, with its neighbours. frames: (frame, ticks). times: ticks, ascending."""
    aspect = Fraction(stream.sample_aspect_ratio or 1)
    waiting = list(reversed(times))
    frames_found: dict[int, SourceFrame] = {}
    before: deque[VideoFrame] = deque(maxlen=_N_NEIGHBOURS)
    n_after = 0
    for frame, at in frames:
        for source in frames_found.values():
            if len(source.neighbours) < source.n_neighbours:
                source.neighbours.append(_colours(frame, size_px))
                n_after += 1
        if not waiting and n_after == _N_NEIGHBOURS * len(frames_found):
            break
        if waiting and at == waiting[-1]:
            earlier = [_colours(earlier_frame, size_px) for earlier_frame in before]
            frames_found[waiting.pop()] = SourceFrame(
                frame=frame,
                aspect=aspect,
                neighbours=earlier,
                n_neighbours=len(earlier) + _N_NEIGHBOURS,
                size_px=size_px,
            )
        while waiting and at is not None and at > waiting[-1]:
            waiting.pop()
        before.append(frame)
    return frames_found
