"""Read an episode's rows as streams, and compare their times."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from loader.errors import Corrupt

from .metadata import SUBTASK_INDEX, SUBTASKS

I64 = np.ndarray[Any, np.dtype[np.int64]]


TOLERANCE_S = 1e-4
"""LeRobot's `tolerance_s`: it accepts a frame, or the step to the next row, this far from its time."""


class TextSpan(NamedTuple):
    """Consecutive rows with one text."""

    start: int
    """First row."""
    stop: int
    """Row after the last."""
    text: str
    """Text of all these rows."""


class EpisodeRows(NamedTuple):
    streams: dict[str, Any]
    """Feature -> array [rows, ...], or list of texts."""
    ns: I64
    """int64 [rows]: nanoseconds since the first row, rounded down."""
    seconds: Any
    """float [rows]: time since the first, as stored."""
    tasks: list[dict[str, Any]]
    """Tasks, each with `start` row, `stop` row and text `task`."""
    subtasks: list[TextSpan]
    """Subtasks in turn; rows of a negative index have none."""


class FrameTimes(NamedTuple):
    """Times of a camera's frames in an episode."""

    camera: str
    """Feature."""
    what: str
    """File and episode, for errors."""
    seconds: Any
    """float64 [rows]: time of each frame since the first."""
    tick_s: float
    """Tick of the video's clock, in seconds."""


def read_rows(
    table: Any,
    what: str,
    length: int,
    fps: Fraction,
    features: Mapping[str, Mapping[str, Any]],
    tasks: Mapping[int, str],
    subtasks: Mapping[int, str],
    frames: Sequence[FrameTimes] = (),
) -> EpisodeRows:
    """Return an episode's rows. Their times agree with the rate, and with the times of the frames.

    features: streams to read. tasks, subtasks: index -> text. frames: times of each camera.
    """
    if table.num_rows != length:
        message = f"{what}: {table.num_rows} rows, meta/ gives {length}"
        raise Corrupt(message, what="rows", where=what, given=table.num_rows, accepted=length)
    if not length:
        raise Corrupt(f"{what}: no rows", what="rows", where=what, given=0)
    _check_numbers(table, what)
    seconds = _scalars(table, "timestamp", what)
    ticks = [camera.tick_s for camera in frames]
    # A video's clock may be coarser than LeRobot's tolerance, and rounds its times.
    ns = timestamp_clock(seconds, fps, max([TOLERANCE_S, *ticks]), what)
    for camera in frames:
        _check_frames(camera, seconds)
    streams: dict[str, Any] = {}
    for name, feature in features.items():
        with feature_named(name):
            if feature["dtype"] == "string":
                streams[name] = _texts(table, name, what)
            else:
                streams[name] = _column(table, name, tuple(feature["shape"]), what)
    task_numbers = _scalars(table, "task_index", what)
    subtask_spans: list[TextSpan] = []
    if subtasks and SUBTASK_INDEX in streams:
        with feature_named(SUBTASK_INDEX):
            subtask_spans = spans_of(streams[SUBTASK_INDEX].reshape(length), subtasks, what)
    task_spans = _tasks(task_numbers, tasks, what)
    return EpisodeRows(streams, ns, seconds, task_spans, subtask_spans)


@contextmanager
def feature_named(name: str) -> Iterator[None]:
    """Add to a Corrupt of the block how to import without the feature or the episode."""
    try:
        yield
    except Corrupt as error:
        advice = f"leave the feature out with --without {name}, or choose other episodes with --episodes"
        raise error.with_message(f"{error}; {advice}") from error


def clock(length: int, fps: Fraction) -> I64:
    """Return each row's time: int64 [length], ns, rounded down."""
    period = 10**9 * fps.denominator  # Python's integers: with such a denominator as 1001 int64 overflows
    return np.array([number * period // fps.numerator for number in range(length)], np.int64)


def timestamp_seconds(ns: I64, fps: Fraction) -> Any:
    """Return rows' timestamps as LeRobot stores them, float32 [rows]; a regular clock's are exact."""
    exact = np.arange(len(ns), dtype=np.float64) * fps.denominator / fps.numerator
    own = ns / 1e9
    is_regular = np.abs(exact - own) < 1e-9  # within a nanosecond: `clock` rounds down
    return np.where(is_regular, exact, own).astype(np.float32)


def timestamp_clock(seconds: Any, fps: Fraction, tolerance_s: float, what: str) -> I64:
    """Return the clock of timestamps [rows]: `clock` if all are within the tolerance of it, else their own times.

    Raises: Corrupt if the steps between rows differ from 1 / fps by more than the tolerance, which LeRobot refuses too.
    """
    period = fps.denominator / fps.numerator
    due = np.arange(len(seconds), dtype=np.float64) * period  # [rows]
    times = seconds.astype(np.float64)
    allowed = _float32_spacing(due) + tolerance_s
    if (np.abs(times - due) <= allowed).all():  # NaN is not
        return clock(len(seconds), fps)
    # Timestamps may drift from the rate, as long as each step is within the tolerance.
    own = np.floor((times - times[0]) * 1e9)
    step_differs = ~(np.abs(np.diff(times) - period) <= allowed[1:])  # [rows - 1]; True for NaN
    is_wrong = np.empty(len(times), bool)
    is_wrong[0] = not abs(times[0]) <= tolerance_s
    # A coarse tick may accept a step of 0, but a clock must ascend.
    is_wrong[1:] = step_differs | (np.diff(own) <= 0)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise Corrupt(
            f"{what}: row {row} has the time {float(times[row])} s, and is due at {float(due[row])} s by its number; "
            f"a step may differ from 1/{fps} s by {tolerance_s} s: choose other episodes with --episodes",
            what="timestamp",
            where=f"{what}, row {row}",
            given=float(times[row]),
            accepted=float(due[row]),
        )
    own_ns: I64 = own.astype(np.int64)
    return own_ns


def _check_frames(camera: FrameTimes, seconds: Any) -> None:
    """Raise Corrupt unless each frame is shown at its row's timestamp."""
    due = seconds.astype(np.float64)
    # LeRobot stores float32, whose values lie 4 ms apart after 10 hours.
    allowed = _float32_spacing(due) + max(TOLERANCE_S, camera.tick_s)
    is_wrong = ~(np.abs(camera.seconds - due) <= allowed)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        with feature_named(camera.camera):
            raise Corrupt(
                f"{camera.what}: the frame of row {row} has the time {float(camera.seconds[row])} s, and is due at "
                f"{float(due[row])} s by the row's timestamp",
                what="timestamp",
                where=f"{camera.what}, row {row}",
                given=float(camera.seconds[row]),
                accepted=float(due[row]),
            )


def _float32_spacing(seconds: Any) -> Any:
    """Return float64, shaped as `seconds`: the distance of neighbouring float32 values there."""
    magnitude = np.maximum(np.abs(seconds), 2.0**-20)  # a microsecond: less is not an error of a clock
    return np.spacing(magnitude.astype(np.float32)).astype(np.float64)


def _check_numbers(table: Any, what: str) -> None:
    numbers = _scalars(table, "frame_index", what)
    # Rows out of order would pair with other frames.
    wrong = np.flatnonzero(numbers != np.arange(len(numbers)))
    if len(wrong):
        row = int(wrong[0])
        raise Corrupt(
            f"{what}: row {row} has the frame_index {numbers[row]}",
            what="frame_index",
            where=f"{what}, row {row}",
            given=int(numbers[row]),
            accepted=row,
        )


def _scalars(table: Any, name: str, what: str) -> Any:
    """Return a column with one number per row: [rows]."""
    return _column(table, name, (1,), what)[:, 0]


def _column(table: Any, name: str, shape: tuple[int, ...], what: str) -> Any:
    """Return a column of numbers: [rows, *shape]."""
    import pyarrow as pa

    if name not in table.column_names:
        raise Corrupt(f"{what}: no column {name!r}", what=f"column {name!r}", where=what)
    values = _flatten(table[name].combine_chunks(), name, what)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise Corrupt(
            f"{what}: {name} is {kind}, no numbers", what=name, where=what, given=kind, accepted="numbers"
        )
    if len(values) != table.num_rows * int(np.prod(shape)):
        message = (
            f"{what}: {name} has {len(values)} values in {table.num_rows} rows, info.json gives "
            f"{list(shape)} each"
        )
        raise Corrupt(message, what=name, where=what, given=len(values), accepted=[table.num_rows, *shape])
    return values.to_numpy(zero_copy_only=False).reshape(table.num_rows, *shape)


def _flatten(values: Any, name: str, what: str) -> Any:
    """Return the innermost values of an Arrow array of lists, all of one length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    while True:
        values = getattr(values, "storage", values)  # of an extension type, such as Hugging Face's Array2D
        if values.null_count:
            message = f"{what}: {name} has {values.null_count} missing values"
            raise Corrupt(message, what=name, where=what, given=f"{values.null_count} missing values")
        kind = values.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            # The number of values may fit although rows are ragged.
            lengths = pc.unique(pc.list_value_length(values))
            if len(lengths) > 1:
                raise Corrupt(
                    f"{what}: {name} has rows of {lengths[0]} and of {lengths[1]} values",
                    what=name,
                    where=what,
                    given=[lengths[0].as_py(), lengths[1].as_py()],
                    accepted="rows of one length",
                )
        elif not pa.types.is_fixed_size_list(kind):
            return values
        values = values.flatten()


def _texts(table: Any, name: str, what: str) -> list[str]:
    if name not in table.column_names:
        raise Corrupt(f"{what}: no column {name!r}", what=f"column {name!r}", where=what)
    texts: list[Any] = table[name].to_pylist()
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            message = f"{what}: row {row} has no text {name!r}, but {text!r:.80}"
            raise Corrupt(message, what=name, where=f"{what}, row {row}", given=text, accepted="a text")
    return texts


def value_runs(values: list[Any]) -> list[tuple[Any, int, int]]:
    """Return (value, start, stop) of runs of equal values."""
    runs: list[tuple[Any, int, int]] = []
    start = 0
    for number, value in enumerate(values):
        if value != values[start]:
            runs.append((values[start], start, number))
            start = number
    if values:
        runs.append((values[start], start, len(values)))
    return runs


def _tasks(numbers: Any, tasks: Mapping[int, str], what: str) -> list[dict[str, Any]]:
    spans = []
    for number, start, stop in value_runs(numbers.astype(np.int64).tolist()):
        if number not in tasks:
            raise Corrupt(
                f"{what}: row {start} has the task {number}, which meta/ does not name: add it there, or choose other "
                "episodes with --episodes",
                what="task_index",
                where=f"{what}, row {start}",
                given=number,
                accepted="a task of meta/",
            )
        spans.append({"start": start, "stop": stop, "task": tasks[number]})
    return spans


def spans_of(numbers: Any, subtasks: Mapping[int, str], what: str) -> list[TextSpan]:
    """Return runs of equal subtasks. numbers: int [rows]; negative for none. Raises: Corrupt for an unknown number."""
    spans = []
    for number, start, stop in value_runs(numbers.astype(np.int64).tolist()):
        if number < 0:
            continue
        if number not in subtasks:
            raise Corrupt(
                f"{what}: row {start} has the subtask {number}, which {SUBTASKS} does not name",
                what="subtask_index",
                where=f"{what}, row {start}",
                given=number,
                accepted=f"a subtask of {SUBTASKS}",
            )
        spans.append(TextSpan(start, stop, subtasks[number]))
    return spans
