"""Clips against their video: times of every frame exactly, and three frames of one clip by their looks.

Times cost one demux of the source; frames a seek each. A frame that differs is looked at again in the clip's size, for
colours that are clipped there. A frame that a seek does not find, or that differs still, is taken from a decode from
the start before anything is said: not every container can seek.
"""

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

from ..clips.packet_field import PACKETS_FIELD
from ..container import moving_picture, opened
from ..unit import Unit, Unusable
from ..video.timestamps import has_display_times, shown
from ..video_colour.colour import is_hdr
from ..video_colour.side_data import display_matrix
from . import findings
from .findings import Reading, compare, finding, turned
from .grid import Grid, grid_of, planes_of

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_BESIDE = 3
"""Frames looked at before and after one: how far B-frames shift a time that is mistaken for another."""

_MIN_CORRELATION = 0.7
"""Lowest correlation of the lightness of two grids of one picture, one of them tone-mapped."""


class Seen(NamedTuple):
    """A source frame, and the looks of those beside it."""

    frame: "VideoFrame"
    """Decoded frame."""
    aspect: Fraction
    """Aspect ratio of its pixels."""
    beside: list[Grid]
    """Grids of the frames beside it."""
    n_beside: int
    """Number of frames beside it so far."""
    size_px: tuple[int, int] | None
    """(width, height) at which its colours are clipped; None: in cells."""


def audit_clips(path: str, units: Sequence[Unit], n_frames_decoded: int | None) -> None:
    """Audit all clips of one video. n_frames_decoded: of the whole file, as its audit counted them.

    Raises: Unusable, under the name of the fault.
    """
    with opened(path) as container:
        stream = moving_picture(container)
        assert stream is not None  # it was cut
        timed = has_display_times(container)
        times = _packet_times(container, stream)
    complete = n_frames_decoded == len(times)
    for unit in units:
        stored, base = clip_times(unit)
        check_times(unit, stored, base, times if timed else None, complete)
    if units:
        _check_pictures(path, units[len(units) // 2])


def check_times(
    unit: Unit, stored: Sequence[int], base: Fraction, source: Sequence[int] | None, complete: bool
) -> None:
    """Check that the clip's frames are at their source's times, and none is missing or new.

    stored: ticks of `base` in the clip, ascending.
    source: times of the source's packets that are shown, in its ticks, ascending; None where the container has none.
    complete: every one of them gives a frame.

    Raises: Unusable.
    """
    facts = unit.fields["json"]
    told: list[int] = facts["pts"]
    source_base = Fraction(*facts["time_base"])
    if len(stored) != len(told):
        raise finding(findings.FRAMES_MISSING, f"{len(stored)} frames stored, {len(told)} cut")
    # Both in ticks of which both bases are multiples: whole numbers.
    second = source_base.denominator * base.denominator
    wanted = [(pts - told[0]) * source_base.numerator * base.denominator for pts in told]
    kept = [(ticks - stored[0]) * base.numerator * source_base.denominator for ticks in stored]
    if wanted != kept:
        name = findings.VFR if _is_even(kept) and not _is_even(wanted) else findings.TIMESTAMPS
        first = next(
            number for number, (one, other) in enumerate(zip(wanted, kept, strict=True)) if one != other
        )
        raise finding(
            name,
            f"frame {first} is stored {kept[first] / second:.6f} s after the first, the source has it "
            f"{wanted[first] / second:.6f} s after",
        )
    if any(later <= earlier for earlier, later in pairwise(told)):
        raise finding(findings.TIMESTAMPS, "the times of the frames do not ascend")
    if source is None:
        return
    inside = source[bisect_left(source, told[0]) : bisect_right(source, told[-1])]
    strange = sorted(set(told) - set(inside))
    if strange:
        raise finding(
            findings.TIMESTAMPS, f"the source shows nothing at {strange[0]} ({len(strange)} such times)"
        )
    if complete and len(set(inside)) != len(told):
        raise finding(
            findings.FRAMES_MISSING,
            f"the source shows {len(set(inside))} frames there, the clip has {len(told)}",
        )


def clip_times(unit: Unit) -> tuple[list[int], Fraction]:
    """Return the ticks of the frames that a stored clip shows, ascending, and the length of a tick in s.

    They are those of the clip's packet table, which was made of the stored file and which loaders read by. Where the
    table is one of other bytes, they are the clip's own.
    """
    mp4: Path = unit.fields["mp4"]
    table = read_packets(unit.fields[PACKETS_FIELD].read_bytes())
    data = mp4.read_bytes()
    if (table.facts.nbytes, table.facts.crc32c) == (len(data), crc32c(data)):
        return np.sort(table.pts[~table.discard]).tolist(), table.facts.time_base
    with opened(str(mp4)) as container:
        stream = container.streams.video[0]
        return _packet_times(container, stream), Fraction(stream.time_base or 1)


def _packet_times(container: "InputContainer", stream: "VideoStream") -> list[int]:
    return sorted(
        packet.pts for packet in container.demux(stream) if packet.pts is not None and not packet.is_discard
    )


def _is_even(times: Sequence[int]) -> bool:
    return len({later - earlier for earlier, later in pairwise(times)}) <= 1


def _check_pictures(path: str, unit: Unit) -> None:
    """Compare the first and the middle frame with their source. Raises: Unusable."""
    mp4 = unit.fields["mp4"].read_bytes()
    told: list[int] = unit.fields["json"]["pts"]
    numbers = sorted({0, len(told) // 2})
    stored = {told[number]: loader.video(frames=1, start=number)(mp4)[0] for number in numbers}
    height, width = stored[told[0]].shape[:2]
    looks = [(frames, size_px) for frames in (_sought, _decoded) for size_px in (None, (width, height))]
    for frames, size_px in looks:
        seen = frames(path, sorted(stored), size_px)
        try:
            for number, pts in zip(numbers, sorted(stored), strict=True):
                _check_picture(stored[pts], seen.get(pts), f"frame {number}")
        except Unusable:
            if (frames, size_px) == looks[-1]:
                raise
        else:
            return


def _check_picture(pixels: "np.ndarray[Any, Any]", seen: Seen | None, where: str) -> None:
    """Compare one frame with its source. Raises: Unusable."""
    if seen is None:
        raise finding(findings.WRONG_FRAME, f"{where}: the source shows no frame at its time")
    frame, turn = seen.frame, display_matrix(seen.frame)
    height, width = pixels.shape[:2]
    shape = (float(frame.width * seen.aspect), float(frame.height))
    check_aspect((width, height), shape[::-1] if is_sideways(turn) else shape, where)
    found, stored = grid_of(pixels), _colours(frame, seen.size_px)
    expected = upright(stored, turn)
    if is_hdr(frame):
        check_structure(found, expected, where)
        return
    readings = [Reading(findings.WRONG_FRAME, upright(grid, turn)) for grid in seen.beside]
    readings += [
        Reading(findings.ROTATION, turned(expected, turns, mirrored))
        for turns in range(4)
        for mirrored in (False, True)
        if turns or mirrored
    ]
    planes = planes_of(frame, _own_size(frame, seen.size_px))
    if planes is not None:
        readings += [
            Reading(findings.COLOUR_RANGE, upright(planes.with_other_range().rgb(), turn)),
            Reading(findings.COLOUR_MATRIX, upright(planes.with_other_matrix().rgb(), turn)),
            Reading(findings.COLOUR_RANGE, upright(_squeezed(planes.rgb()), turn)),
        ]
    compare(found, expected, readings, where)


def _squeezed(grid: Grid) -> Grid:
    """Return full-range code values as they look when read as limited, or stretched twice."""
    return np.clip((grid - 16) * 255 / 219, 0, 255)


def check_aspect(size_px: tuple[int, int], shape: tuple[float, float], where: str) -> None:
    """Compare the stored (width, height) with the shape of the source; each side may be rounded to an even number.

    Raises: Unusable.
    """
    (width, height), (source_width, source_height) = size_px, shape
    slack = 1.5 / width + 1.5 / height
    if abs(width / height * source_height / source_width - 1) > slack:
        raise finding(
            findings.ASPECT_RATIO,
            f"{where}: {width} x {height} px stored of a picture that is {source_width:.0f} x {source_height:.0f}",
        )


def check_structure(found: Grid, expected: Grid, where: str) -> None:
    """Check that light places stay light, in a picture whose tones are changed on purpose. Raises: Unusable."""
    one, other = found.mean(axis=-1).ravel(), expected.mean(axis=-1).ravel()
    if min(one.std(), other.std()) < findings.SAME_LEVELS:
        return
    correlation = float(np.corrcoef(one, other)[0, 1])
    if correlation < -_MIN_CORRELATION:
        raise finding(findings.INVERTED, f"{where}: light and dark changed places")
    if correlation < _MIN_CORRELATION:
        raise finding(findings.PIXELS, f"{where}: correlates {correlation:.2f} with its source")


def _colours(frame: "VideoFrame", size_px: tuple[int, int] | None) -> Grid:
    planes = planes_of(frame, _own_size(frame, size_px))
    return grid_of(frame.to_ndarray(format="rgb24", threads=1)) if planes is None else planes.rgb()


def _own_size(frame: "VideoFrame", size_px: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return an upright (width, height), as the frame lies."""
    return size_px[::-1] if size_px is not None and is_sideways(display_matrix(frame)) else size_px


def is_sideways(matrix: tuple[int, ...] | None) -> bool:
    return matrix is not None and abs(matrix[1]) > abs(matrix[0])


def upright(grid: Grid, matrix: tuple[int, ...] | None) -> Grid:
    """Put each cell where the display matrix sends it: (x, y) to (a x + c y, b x + d y), ISO/IEC 14496-12, 6.2.2."""
    if matrix is None:
        return grid
    (a, b), (c, d) = (np.sign(np.round(np.array(matrix[at : at + 2]) / 65536)) for at in (0, 3))
    y, x = (2 * axis - (len(grid) - 1) for axis in np.indices(grid.shape[:2]))  # odd steps around the middle
    out = np.empty_like(grid)
    to_x, to_y = a * x + c * y, b * x + d * y
    out[((to_y + len(grid) - 1) // 2).astype(int), ((to_x + len(grid) - 1) // 2).astype(int)] = grid
    return out


def _sought(path: str, wanted: Sequence[int], size_px: tuple[int, int] | None) -> dict[int, Seen]:
    """Return the wanted frames that are found after a seek to the keyframe before the first."""
    import av

    with opened(path) as container:
        stream = moving_picture(container)
        if stream is None or not has_display_times(container):
            return {}
        stream.thread_count = 1
        try:
            container.seek(wanted[0], stream=stream, backward=True)
            frames = ((frame, frame.pts) for frame in container.decode(stream))
            return _find(frames, wanted, stream, size_px)
        except av.error.FFmpegError:
            return {}  # it cannot seek; the decode from the start will find them


def _decoded(path: str, wanted: Sequence[int], size_px: tuple[int, int] | None) -> dict[int, Seen]:
    with opened(path) as container:
        stream = moving_picture(container)
        assert stream is not None  # it was cut
        stream.thread_count = 1
        frames = shown(container, container.decode(stream))
        return _find(((one.frame, one.pts) for one in frames), wanted, stream, size_px)


def _find(
    frames: "Iterator[tuple[VideoFrame, int | None]]",
    wanted: Sequence[int],
    stream: "VideoStream",
    size_px: tuple[int, int] | None,
) -> dict[int, Seen]:
    """Return the first frame at each of these times, with those around it."""
    aspect = Fraction(stream.sample_aspect_ratio or 1)
    waiting = list(reversed(wanted))
    found: dict[int, Seen] = {}
    before: deque[VideoFrame] = deque(maxlen=_BESIDE)
    n_after = 0
    for frame, at in frames:
        for seen in found.values():
            if len(seen.beside) < seen.n_beside:
                seen.beside.append(_colours(frame, size_px))
                n_after += 1
        if not waiting and n_after == _BESIDE * len(found):
            break
        if waiting and at == waiting[-1]:
            earlier = [_colours(one, size_px) for one in before]
            found[waiting.pop()] = Seen(frame, aspect, earlier, len(earlier) + _BESIDE, size_px)
        while waiting and at is not None and at > waiting[-1]:
            waiting.pop()
        before.append(frame)
    return found
