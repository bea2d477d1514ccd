"""Survey of a version for a LeRobot export: episode order, rows, tasks, frame rate and losses."""

import io
from collections.abc import Collection, Iterator, Mapping
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
from .language import COLUMNS, SUBTASK, columns_nbytes, inexact, needed_columns, task_turns
from .metadata import SUBTASK_INDEX, SUBTASKS
from .rows import clock, value_runs
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

    def add_tasks(self, tasks: list[dict[str, Any]]) -> None:
        """Add the texts of an episode's tasks, each once."""
        for task in tasks:
            if task["task"] not in self.tasks:
                self.tasks.append(task["task"])

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


def survey_selection(selection: ExportSelection) -> Survey:
    """Return a selection's survey. Reads all clocks and every `episode.json`."""
    # Even the last episode may show that texts and numbers disagree, so the survey may start over.
    survey = _survey(selection, with_subtasks=True)
    if survey is None:
        survey = _survey(selection, with_subtasks=False)
        assert survey is not None
        why = "its numbers and the texts of style 'subtask' do not go together: the texts become language_persistent"
        survey.losses.append(Loss(f"field '{SUBTASK_INDEX}.npy'", f"{why}, and {SUBTASKS} is left out"))
    return survey


def _survey(selection: ExportSelection, *, with_subtasks: bool) -> Survey | None:
    """Return the survey; None if subtasks are wanted, and their numbers and texts do not go together."""
    survey = _fields(selection)
    order = _in_order(selection)
    names = [f"{name}{CLOCK}" for name in survey.streams]
    if not names:
        name = selection.version.name
        message = f"{name} has no field <stream>.npy with its clock <stream>{CLOCK}: LeRobot needs rows"
        raise InvalidSample(message, what=f"<stream>.npy and <stream>{CLOCK}", where=name)
    main = "action" if "action" in survey.streams else survey.streams[0]
    differences = _Differences()
    with_subtasks = with_subtasks and survey.has_language and SUBTASK_INDEX in survey.streams
    numbers_field = f"{SUBTASK_INDEX}.npy"
    if with_subtasks:
        names.append(numbers_field)
    columns: set[str] = set()
    first = 0  # row of the dataset
    episodes = zip(order, _read(selection, order, survey, names), strict=True)
    for number, ((ordinal, key), fields) in enumerate(episodes):
        main_clock = fields[f"{main}{CLOCK}"]
        ns = _clock(main_clock, key)
        differences.clocks |= {name for name in survey.streams if fields[f"{name}{CLOCK}"] != main_clock}
        facts = _episode_facts(fields.get(EPISODE), key)
        if number == 0:  # the first episode decides for the dataset
            survey.fps = _rate(facts, ns)
            survey.features = facts["features"]
        differences.features |= facts["features"] != survey.features
        if not np.array_equal(ns, clock(len(ns), survey.fps)):  # a loss: LeRobot's tolerance may accept it
            differences.irregular.append(key)
        lines: list[LanguageLine] = []
        if survey.has_language:
            lines = sample_language(fields, key)
        (row,) = selection.rows(np.array([ordinal]))
        tasks = _tasks(task_turns(lines, ns) or facts["tasks"], str(row.get("task", "")), len(ns), key)
        if with_subtasks:
            numbers = subtask_numbers(fields[numbers_field], len(ns), key)
            rest = survey.add_subtasks(lines, numbers, ns)
            if rest is None:
                return None
            lines = rest
        columns |= needed_columns(lines, ns)
        if why := inexact(lines, ns, survey.fps):
            differences.inexact[key] = why
        nbytes = columns_nbytes(lines, ns)
        survey.episodes.append(
            PlannedEpisode(number, ordinal, key, first, len(ns), tasks, facts["stats"], ns, nbytes)
        )
        first += len(ns)
        survey.add_tasks(tasks)
    # Numbers without texts would get another episode's text in `meta/subtasks.parquet`.
    if survey.subtasks and (survey.has_bare_numbers or SUBTASK_INDEX in differences.clocks):
        return None
    if survey.has_language:
        columns.update(name for name in COLUMNS if name in survey.features)
    survey.language = sorted(columns)
    survey.streams = [name for name in survey.streams if name not in differences.clocks]
    survey.losses += differences.losses(main, survey.fps)
    survey.losses += _column_losses(selection, survey)
    survey.losses += _camera_losses(selection, survey)
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
        why = f"its clock differs from the clock of {main}.npy: a dataset has one rate"
        losses = [Loss(f"field '{name}.npy'", why) for name in sorted(self.clocks)]
        if self.irregular:
            first = self.irregular[0]
            why = (
                f"of {len(self.irregular)} episodes, the first is {first}, it is not a multiple of 1/{fps} s"
            )
            losses.append(Loss("clock", f"{why}: it becomes float32 seconds, which lerobot may refuse"))
        if self.inexact:
            key, why = next(iter(self.inexact.items()))
            losses.append(
                Loss(f"field {FIELD!r}", f"of {len(self.inexact)} episodes, the first is {key}: {why}")
            )
        if self.features:
            losses.append(
                Loss(f"field {EPISODE!r}", "features differ between episodes: the first episode's count")
            )
        return losses


def _camera_losses(selection: ExportSelection, survey: Survey) -> list[Loss]:
    """Return the cameras whose numbers LeRobot would change. Reads packet tables of the first episode."""
    tables = {}
    for camera, video in survey.cameras.items():
        table = f"{video}{SUFFIX}"
        if table in selection.fields and table not in selection.partial:
            tables[camera] = table
    if not tables or not survey.episodes:
        return []
    ordinals = np.array([survey.episodes[0].ordinal])
    addresses = selection.version.address(ordinals, [*tables.values()])
    (fields,) = read_fields(selection.version.shard_store, addresses)
    losses = []
    for camera, table in sorted(tables.items()):
        video = survey.cameras[camera]
        pix_fmt = read_packets(fields[table]).facts.pix_fmt
        depth = selection.version.facts.get(video, {}).get("depth")
        if why := why_lossy(pix_fmt, survey.features.get(camera, {}), depth):
            losses.append(Loss(f"field {video!r}", why))
    return losses


def _tasks(tasks: list[dict[str, Any]], column: str, length: int, key: str) -> list[dict[str, Any]]:
    """Return the tasks, else the column's text, checked. Raises: InvalidSample."""
    if not tasks:
        return [{"start": 0, "stop": length, "task": column}]
    starts = [task["start"] for task in tasks]
    stops = [task["stop"] for task in tasks]
    if [*starts, length] != [0, *stops]:  # each begins where the one before it stops
        raise InvalidSample(
            f"sample {key!r}: the tasks of {EPISODE} are not of its {length} rows in turn",
            what=f"tasks of {EPISODE}",
            where=f"sample {key!r}",
            accepted=f"{length} rows in turn",
        )
    return tasks


def _fields(selection: ExportSelection) -> Survey:
    """Return a survey with the fields of every episode, and the losses of the others."""
    names = set(selection.fields)
    partial = set(selection.partial)
    clocks = [name for name in names if name.endswith(CLOCK)]
    candidates = [name.removesuffix(CLOCK) for name in clocks]
    streams = {name for name in candidates if f"{name}.npy" in names}
    # Sorted: if a camera has both, `.run` comes last and wins.
    videos = {name.rpartition(".")[0]: name for name in sorted(names) if name.endswith((".mp4", ".run"))}
    texts = {name.removesuffix(".json") for name in names if name.endswith(".json") and name != EPISODE}

    exported = {EPISODE, FIELD}
    for name in streams:
        for field_name in (f"{name}.npy", f"{name}{CLOCK}"):
            exported |= {field_name, f"{field_name}{ROWS}"}
    for name in videos.values():
        exported |= {name, f"{name}{SUFFIX}"}
    exported |= {f"{name}.json" for name in texts}
    others = sorted(names - exported)
    losses = [Loss(f"field {name!r}", "it is neither a stream with a clock nor a video") for name in others]
    uneven = sorted(name for name in partial & exported if not name.endswith(ROWS))
    losses += [Loss(f"field {name!r}", "not all episodes have it") for name in uneven]

    lacking: set[str] = set()  # features that not all episodes have
    for end in (CLOCK, ".npy", ".mp4", ".run", ".json"):
        lacking |= {name.removesuffix(end) for name in partial}
    for name in videos.values():
        if name.endswith(".run") and f"{name}{SUFFIX}" not in names - partial:
            losses.append(Loss(f"field {name!r}", f"not all episodes have {name}{SUFFIX}"))
            lacking.add(name.removesuffix(".run"))
    return Survey(
        streams=_whole(streams, lacking),
        cameras={name: videos[name] for name in _whole(videos, lacking)},
        texts=_whole(texts, lacking),
        losses=losses,
        has_language=FIELD in names and FIELD not in partial,
    )


def _whole(features: Collection[str], lacking: set[str]) -> list[str]:
    """Return the features that every episode has, and whose names LeRobot takes."""
    return sorted(name for name in features if name not in lacking and "/" not in name)


def _column_losses(selection: ExportSelection, survey: Survey) -> list[Loss]:
    losses = []
    for number, episode in enumerate(survey.episodes):
        if episode.key != f"episode_{number:06d}":
            why = f"episodes are numbered from 0 on: {episode.key} becomes episode {number}"
            losses.append(Loss("keys", why))
            break
    rows = selection.rows(np.array([episode.ordinal for episode in survey.episodes]))
    robots = {row.get("robot") for row in rows}
    if len(robots) > 1:
        losses.append(Loss("column 'robot'", "a dataset has one kind of robot: the first episode's counts"))
    splits = [row.get("split") for row in rows]
    if len(value_runs(splits)) > len(set(splits)):
        losses.append(Loss("column 'split'", "a split is one run of episodes: it is left out"))
    return losses


def extra_columns(selection: ExportSelection) -> list[str]:
    """Return the columns that LeRobot does not define."""
    others = [name for name in selection.columns if name not in _STORED]
    return [name for name in others if name in SOURCE_COLUMNS or "/" not in name]


def _in_order(selection: ExportSelection) -> list[tuple[int, str]]:
    """Return (ordinal, key) of each sample, by key."""
    ordinals = np.flatnonzero(selection.members)
    pairs = zip(ordinals.tolist(), selection.version.keys(ordinals), strict=True)
    # Keys of an import contain the number, so each episode gets its number again.
    return sorted(pairs, key=lambda pair: pair[1])


def _read(
    selection: ExportSelection, order: list[tuple[int, str]], survey: Survey, names: list[str]
) -> Iterator[dict[str, bytes]]:
    names = [*names]
    if EPISODE in selection.fields and EPISODE not in selection.partial:
        names.append(EPISODE)
    if survey.has_language:
        names.append(FIELD)
    # Reads of many episodes go out together; the bound holds memory.
    for start in range(0, len(order), _AT_ONCE):
        ordinals = np.array([ordinal for ordinal, _ in order[start : start + _AT_ONCE]])
        addresses = selection.version.address(ordinals, names)
        yield from read_fields(selection.version.shard_store, addresses)


def sample_language(fields: Mapping[str, bytes], key: str) -> list[LanguageLine]:
    """Return a sample's language. Raises: Corrupt."""
    try:
        return parse_language(fields[FIELD])
    except Corrupt as error:
        raise Corrupt(f"sample {key!r}: {FIELD}: {error}") from error


def _clock(data: bytes, key: str) -> Any:
    """Return a clock, int64 [rows] in ns, checked."""
    ns = load_array(data, f"sample {key!r}: clock")
    is_clock = ns.dtype == np.int64 and ns.ndim == 1 and len(ns) > 0
    if not is_clock or ns[0] < 0 or (np.diff(ns) <= 0).any():
        raise InvalidSample(
            f"sample {key!r}: its clock is {ns.dtype} {list(ns.shape)}; int64 nanoseconds that ascend are needed",
            what="clock",
            where=f"sample {key!r}",
            given=f"{ns.dtype} {list(ns.shape)}",
            accepted="int64 nanoseconds that ascend",
        )
    return ns


def subtask_numbers(data: bytes, length: int, key: str) -> Any:
    """Return the numbers of an episode's subtasks, int [rows]."""
    numbers = load_array(data, f"sample {key!r}: {SUBTASK_INDEX}.npy")
    if numbers.dtype.kind not in "iu" or numbers.size != length:
        raise InvalidSample(
            f"sample {key!r}: {SUBTASK_INDEX}.npy is {numbers.dtype} {list(numbers.shape)}; a whole number for each of "
            f"{length} rows is needed, or leave it out with --without {SUBTASK_INDEX}.npy"
        )
    return numbers.reshape(length)


def load_array(data: bytes, what: str) -> Any:
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InvalidSample(f"{what}: {error}") from error


def _episode_facts(data: bytes | None, key: str) -> dict[str, Any]:
    """Return the document of `episode.json`, with features, tasks and stats. Raises: InvalidSample."""
    try:
        document = parse_json(data or b"{}", lenient=True)
    except ValueError as error:
        raise InvalidSample(f"sample {key!r}: {EPISODE}: {error}") from None
    facts: dict[str, Any] = {"features": {}, "tasks": [], "stats": {}}
    if isinstance(document, dict):
        facts |= document
    tasks = facts["tasks"]
    is_valid = isinstance(tasks, list) and all(map(_is_task, tasks))
    for objects in (facts["features"], facts["stats"]):
        is_valid &= isinstance(objects, dict) and all(isinstance(one, dict) for one in objects.values())
    if not is_valid:
        raise InvalidSample(
            f"sample {key!r}: {EPISODE}: features and stats are objects of objects, "
            'tasks a list of {"start": row, "stop": row after the last, "task": text}',
            what=EPISODE,
            where=f"sample {key!r}",
            accepted="features, stats and tasks",
        )
    return facts


def _is_task(value: Any) -> bool:
    types = {"start": int, "stop": int, "task": str}
    return isinstance(value, dict) and all(type(value.get(name)) is kind for name, kind in types.items())


def _rate(facts: dict[str, Any], ns: Any) -> Fraction:
    """Return rows per second: of `episode.json`, else of the clock's first and last time."""
    try:
        rate = Fraction(facts["fps"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        rate = Fraction(0)
    if rate > 0:
        return rate
    if len(ns) < 2:
        return Fraction(1)
    exact = Fraction((len(ns) - 1) * 10**9, int(ns[-1] - ns[0]))
    whole = round(exact)
    if abs(exact - whole) < Fraction(1, 1000):  # times are rounded to nanoseconds
        return Fraction(whole)
    return exact.limit_denominator(1001)  # as in 30000/1001
