"""Survey of a version for a LeRobot export: episode order, rows, tasks, frame rate and losses."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.errors import Corrupt, InvalidSample
from loader.json_text import parse_json
from loader.modalities.fields import ROWS_SUFFIX as ROWS
from loader.modalities.language import FIELD, LanguageLine, parse_language
from loader.modalities.video.packet_table import SUFFIX, read_packets

from ..exporter import ExportSelection, Loss
from .depth import why_lossy
from .language import COLUMNS, SUBTASK, columns_in, columns_nbytes, inexact, tasks_in
from .metadata import SUBTASK_INDEX, SUBTASKS
from .rows import clock, runs_of
from .subtasks import lines_beside, texts_of_numbers

EPISODE = "episode.json"
CLOCK = ".ns.npy"
_STORED = frozenset({"robot", "task", "n_frames", "duration_ns", "episode_index", "split"})
_AT_ONCE = 256


class PlannedEpisode(NamedTuple):
    """An exported episode."""

    number: int
    """Index, from 0."""
    ordinal: int
    """Its sample's live ordinal."""
    key: str
    """Sample key."""
    first: int
    """Index of its first row in the dataset."""
    length: int
    """Number of rows."""
    tasks: list[dict[str, Any]]
    """Tasks, each with `start` row, `stop` row and text `task`."""
    stats: dict[str, Any]
    """Statistics stored in the version: feature -> name -> value."""
    ns: Any
    """Frame times: int64 [length], ns."""
    language_nbytes: int
    """Approximate bytes of its language columns."""


@dataclass(slots=True, kw_only=True)
class Survey:
    streams: list[str]
    """Numeric features."""
    cameras: dict[str, str]
    """Video feature -> its field: mp4 or packets."""
    texts: list[str]
    """Text features."""
    has_language: bool = False
    """True if every episode has language."""
    language: list[str] = field(default_factory=list)
    """Language columns to write."""
    fps: Fraction = Fraction(0)
    """Rows per second."""
    features: dict[str, Any] = field(default_factory=dict)
    """Feature -> its description in the version."""
    episodes: list[PlannedEpisode] = field(default_factory=list)
    """In key order."""
    tasks: list[str] = field(default_factory=list)
    """Texts by index."""
    subtasks: dict[int, str] = field(default_factory=dict)
    """Number in `subtask_index` -> text, for `meta/subtasks.parquet`; empty if there are none."""
    has_bare_numbers: bool = False
    """True if an episode has numbers of subtasks, but no texts."""
    losses: list[Loss] = field(default_factory=list)
    """Losses of the export."""

    def add_subtasks(self, lines: list[LanguageLine], numbers: Any, ns: Any) -> list[LanguageLine] | None:
        """Add an episode's texts, and return its other lines; None if they do not go with the numbers [rows]."""
        if not any(line.style == SUBTASK for line in lines):
            self.has_bare_numbers |= bool((numbers >= 0).any())
            return lines
        texts = texts_of_numbers(lines, numbers, ns, self.subtasks)
        if texts is None:
            return None
        self.subtasks |= texts
        return lines_beside(lines, numbers, ns, texts)


def survey_of(selection: ExportSelection) -> Survey:
    """Return a selection's survey. Reads all clocks and every `episode.json`."""
    survey = _survey(selection, with_subtasks=True)
    if survey is None:
        survey = _survey(selection, with_subtasks=False)
        assert survey is not None
        why = "its numbers and the texts of style 'subtask' do not go together: the texts become language_persistent"
        survey.losses.append(Loss(f"field '{SUBTASK_INDEX}.npy'", f"{why}, and {SUBTASKS} is left out"))
    return survey


def _survey(selection: ExportSelection, *, with_subtasks: bool) -> Survey | None:
    """Return the survey; None if subtasks are wanted, and their numbers and texts do not go together."""
    survey, order = _fields(selection), _in_order(selection)
    clocks = [f"{name}{CLOCK}" for name in survey.streams]
    if not clocks:
        raise InvalidSample(
            f"{selection.version.name} has no field <stream>.npy with its clock <stream>{CLOCK}: LeRobot needs rows"
        )
    main = "action" if "action" in survey.streams else survey.streams[0]
    seen = _Differences()
    with_subtasks = with_subtasks and survey.has_language and SUBTASK_INDEX in survey.streams
    numbers_field = f"{SUBTASK_INDEX}.npy"
    names = [*clocks, numbers_field] if with_subtasks else clocks
    columns = set[str]()
    for (ordinal, key), fields in zip(order, _read(selection, order, survey, names), strict=True):
        ns = _clock(fields[f"{main}{CLOCK}"], key)
        clock_of_main = fields[f"{main}{CLOCK}"]
        seen.clocks |= {name for name in survey.streams if fields[f"{name}{CLOCK}"] != clock_of_main}
        facts = _facts_of(fields.get(EPISODE), key)
        if not survey.episodes:
            survey.fps, survey.features = _rate(facts, ns), facts["features"]
        seen.features |= facts["features"] != survey.features
        if not np.array_equal(ns, clock(len(ns), survey.fps)):
            seen.irregular.append(key)
        row = selection.rows(np.array([ordinal]))[0]
        lines = lines_of(fields, key) if survey.has_language else []
        tasks = _tasks(tasks_in(lines, ns) or facts["tasks"], str(row.get("task", "")), len(ns), key)
        if with_subtasks:
            rest = survey.add_subtasks(lines, numbers_of(fields[numbers_field], len(ns), key), ns)
            if rest is None:
                return None
            lines = rest
        columns |= columns_in(lines, ns)
        if why := inexact(lines, ns, survey.fps):
            seen.inexact[key] = why
        nbytes = columns_nbytes(lines, ns)
        first = survey.episodes[-1].first + survey.episodes[-1].length if survey.episodes else 0
        survey.episodes.append(
            PlannedEpisode(
                len(survey.episodes), ordinal, key, first, len(ns), tasks, facts["stats"], ns, nbytes
            )
        )
        survey.tasks += [
            text for text in dict.fromkeys(one["task"] for one in tasks) if text not in survey.tasks
        ]
    if survey.subtasks and (survey.has_bare_numbers or SUBTASK_INDEX in seen.clocks):
        return None
    survey.language = sorted(
        columns | {name for name in COLUMNS if survey.has_language and name in survey.features}
    )
    survey.streams = [name for name in survey.streams if name not in seen.clocks]
    survey.losses += [*seen.losses(main, survey.fps), *_of_columns(selection, survey)]
    survey.losses += _of_frames(selection, survey)
    return survey


@dataclass(slots=True)
class _Differences:
    """Differences between streams, and between episodes."""

    clocks: set[str] = field(default_factory=set)
    """Streams on another clock."""
    irregular: list[str] = field(default_factory=list)
    """Keys of episodes whose clock is not the rate's."""
    inexact: dict[str, str] = field(default_factory=dict)
    """Key -> what LeRobot's columns of language cannot hold."""
    features: bool = False
    """True if the described features differ."""

    def losses(self, main: str, fps: Fraction) -> list[Loss]:
        losses = [
            Loss(
                f"field '{name}.npy'",
                f"its clock differs from the clock of {main}.npy: a dataset has one rate",
            )
            for name in sorted(self.clocks)
        ]
        if self.irregular:
            why = f"of {len(self.irregular)} episodes, the first is {self.irregular[0]}, it is no multiple of 1/{fps} s"
            losses.append(Loss("clock", f"{why}: it becomes float32 seconds, which lerobot may refuse"))
        for key, why in [*self.inexact.items()][:1]:
            losses.append(
                Loss(f"field {FIELD!r}", f"of {len(self.inexact)} episodes, the first is {key}: {why}")
            )
        if self.features:
            losses.append(
                Loss(f"field {EPISODE!r}", "features differ between episodes: the first episode's count")
            )
        return losses


def _of_frames(selection: ExportSelection, survey: Survey) -> list[Loss]:
    """Return the cameras whose numbers LeRobot would change. Reads packet tables of the first episode."""
    tables = {
        camera: f"{field}{SUFFIX}"
        for camera, field in survey.cameras.items()
        if f"{field}{SUFFIX}" in selection.fields and f"{field}{SUFFIX}" not in selection.partial
    }
    if not tables or not survey.episodes:
        return []
    ordinals = np.array([survey.episodes[0].ordinal])
    addresses = selection.version.address(ordinals, [*tables.values()])
    (fields,) = read_fields(selection.version.shard_store, addresses)
    losses = []
    for camera, table in sorted(tables.items()):
        pix_fmt = read_packets(fields[table]).facts.pix_fmt
        fact = selection.version.facts.get(survey.cameras[camera], {}).get("depth")
        if why := why_lossy(pix_fmt, survey.features.get(camera, {}), fact):
            losses.append(Loss(f"field {survey.cameras[camera]!r}", why))
    return losses


def _tasks(tasks: list[dict[str, Any]], column: str, length: int, key: str) -> list[dict[str, Any]]:
    """Return the tasks, else the column's text, checked. Raises: InvalidSample."""
    tasks = tasks or [{"start": 0, "stop": length, "task": column}]
    if [task["start"] for task in tasks] + [length] != [0] + [task["stop"] for task in tasks]:
        raise InvalidSample(f"sample {key!r}: the tasks of {EPISODE} are not of its {length} rows in turn")
    return tasks


def _fields(selection: ExportSelection) -> Survey:
    names, partial = set(selection.fields), selection.partial
    streams = {
        n.removesuffix(CLOCK) for n in names if n.endswith(CLOCK) and n.removesuffix(CLOCK) + ".npy" in names
    }
    videos = {name.rpartition(".")[0]: name for name in sorted(names) if name.endswith((".mp4", ".run"))}
    texts = {name.removesuffix(".json") for name in names if name.endswith(".json") and name != EPISODE}
    used = {
        EPISODE,
        FIELD,
        *(f"{n}{end}{rows}" for n in streams for end in (".npy", CLOCK) for rows in ("", ROWS)),
    }
    used |= {f"{name}{end}" for name in videos.values() for end in ("", SUFFIX)} | {
        f"{n}.json" for n in texts
    }
    losses = [
        Loss(f"field {n!r}", "it is neither a stream with a clock nor a video") for n in sorted(names - used)
    ]
    uneven = {n for n in partial if n in used and not n.endswith(ROWS)}
    losses += [Loss(f"field {n!r}", "not all episodes have it") for n in sorted(uneven)]
    lacking = {one.removesuffix(end) for one in partial for end in (CLOCK, ".npy", ".mp4", ".run", ".json")}
    runs = [
        name
        for name in videos.values()
        if name.endswith(".run") and name + SUFFIX not in names - set(partial)
    ]
    losses += [Loss(f"field {name!r}", f"not all episodes have {name}{SUFFIX}") for name in runs]
    lacking |= {name.removesuffix(".run") for name in runs}
    of = [sorted(name for name in {*one} - lacking if "/" not in name) for one in (streams, videos, texts)]
    cameras = {name: videos[name] for name in of[1]}
    has_language = FIELD in names and FIELD not in partial
    return Survey(streams=of[0], cameras=cameras, texts=of[2], losses=losses, has_language=has_language)


def _of_columns(selection: ExportSelection, survey: Survey) -> list[Loss]:
    losses = []
    wrong = next((i for i, one in enumerate(survey.episodes) if one.key != f"episode_{i:06d}"), None)
    if wrong is not None:
        losses.append(
            Loss(
                "keys",
                f"episodes are numbered from 0 on: {survey.episodes[wrong].key} becomes episode {wrong}",
            )
        )
    rows = selection.rows(np.array([one.ordinal for one in survey.episodes]))
    if len({row.get("robot") for row in rows}) > 1:
        losses.append(Loss("column 'robot'", "a dataset has one kind of robot: the first episode's counts"))
    splits = [row.get("split") for row in rows]
    if len(runs_of(splits)) > len(set(splits)):
        losses.append(Loss("column 'split'", "a split is one run of episodes: it is left out"))
    return losses


def extra_columns(selection: ExportSelection) -> list[str]:
    """Return the columns that LeRobot does not define."""
    return [
        name
        for name in selection.columns
        if name not in _STORED and (name in SOURCE_COLUMNS or "/" not in name)
    ]


def _in_order(selection: ExportSelection) -> list[tuple[int, str]]:
    ordinals = np.flatnonzero(selection.members)
    return sorted(
        zip(ordinals.tolist(), selection.version.keys(ordinals), strict=True), key=lambda pair: pair[1]
    )


def _read(
    selection: ExportSelection, order: list[tuple[int, str]], survey: Survey, names: list[str]
) -> Iterator[dict[str, bytes]]:
    names = names + [EPISODE] * (EPISODE in selection.fields and EPISODE not in selection.partial)
    names += [FIELD] * survey.has_language
    for start in range(0, len(order), _AT_ONCE):
        ordinals = np.array([ordinal for ordinal, _ in order[start : start + _AT_ONCE]])
        yield from read_fields(selection.version.shard_store, selection.version.address(ordinals, names))


def lines_of(fields: Mapping[str, bytes], key: str) -> list[LanguageLine]:
    """Return a sample's language. Raises: Corrupt."""
    try:
        return parse_language(fields[FIELD])
    except Corrupt as error:
        raise Corrupt(f"sample {key!r}: {FIELD}: {error}") from error


def _clock(data: bytes, key: str) -> Any:
    ns = array_of(data, f"sample {key!r}: clock")
    if ns.dtype != np.int64 or ns.ndim != 1 or not len(ns) or (np.diff(ns) <= 0).any() or ns[0] < 0:
        raise InvalidSample(
            f"sample {key!r}: its clock is {ns.dtype} {list(ns.shape)}; int64 nanoseconds that ascend are needed"
        )
    return ns


def numbers_of(data: bytes, length: int, key: str) -> Any:
    """Return the numbers of an episode's subtasks, int [rows]."""
    numbers = array_of(data, f"sample {key!r}: {SUBTASK_INDEX}.npy")
    if numbers.dtype.kind not in "iu" or numbers.size != length:
        raise InvalidSample(
            f"sample {key!r}: {SUBTASK_INDEX}.npy is {numbers.dtype} {list(numbers.shape)}; a whole number for each of "
            f"{length} rows is needed, or leave it out with --without {SUBTASK_INDEX}.npy"
        )
    return numbers.reshape(length)


def array_of(data: bytes, what: str) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InvalidSample(f"{what}: {error}") from error


def _facts_of(data: bytes | None, key: str) -> dict[str, Any]:
    try:
        document = parse_json(data or b"{}", lenient=True)
    except ValueError as error:
        raise InvalidSample(f"sample {key!r}: {EPISODE}: {error}") from None
    facts: dict[str, Any] = {"features": {}, "tasks": [], "stats": {}} | (
        document if isinstance(document, dict) else {}
    )
    features, stats, tasks = facts["features"], facts["stats"], facts["tasks"]
    named = isinstance(features, dict) and isinstance(stats, dict)
    whole = named and all(isinstance(one, dict) for one in (*features.values(), *stats.values()))
    if not whole or not isinstance(tasks, list) or not all(map(_is_task, tasks)):
        raise InvalidSample(
            f"sample {key!r}: {EPISODE}: features and stats are objects of objects, "
            'tasks a list of {"start": row, "stop": row behind the last, "task": text}'
        )
    return facts


def _is_task(value: Any) -> bool:
    types = {"start": int, "stop": int, "task": str}
    return isinstance(value, dict) and all(type(value.get(name)) is kind for name, kind in types.items())


def _rate(facts: dict[str, Any], ns: Any) -> Fraction:
    try:
        if (rate := Fraction(facts["fps"])) > 0:
            return rate
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        pass
    if len(ns) < 2:
        return Fraction(1)
    exact = Fraction((len(ns) - 1) * 10**9, int(ns[-1] - ns[0]))
    return (
        Fraction(round(exact))
        if abs(exact - round(exact)) < Fraction(1, 1000)
        else exact.limit_denominator(1001)
    )
