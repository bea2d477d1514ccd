"""One pass over a version's samples table: everything that a card counts.

The table's files are read one run at a time and batch by batch, only the columns a card shows; no media are
touched. Memory: the compressed files of one run, some 10 bytes per row (its kind, its split, whether it is live), and
16 bytes per raw object. Time: O(rows x columns); the keys are hashed one by one, about a microsecond each.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loader import Version
from loader.dataset.columns import KEY_COLUMNS
from loader.dataset.parquet import TableFile, check_schema_version, get_table_bytes
from loader.dataset.spill import key_hash
from loader.errors import Corrupt

from ..progress import progress
from . import classes
from .raw import RawObjects
from .tally import Spread, Tally

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

BATCH_ROWS = 65_536
MAX_NAMES = 60
"""Different kinds, or splits, that are told apart; a column with more is not what its name says."""
CANDIDATES = 4
"""So many times the samples that will be shown are kept, to choose of different raw objects."""
OTHERS = "(others)"
NO_SPLIT = "(no split)"

_SIDES = ("width_px", "height_px")
_LANGUAGE = ("language", "lang")
FACTS = ("key", "split", *_SIDES, "duration_s", "n_chars", "label", *_LANGUAGE, "licence", "raw_key")
"""What is told of a sample that is shown, where the table has it."""


@dataclass(slots=True)
class KindScan:
    """What is collected of one kind."""

    modality: str
    splits: np.ndarray[Any, np.dtype[np.int64]]
    seconds: np.ndarray[Any, np.dtype[np.float64]]
    raw_objects: int | None = None
    sound_s: float = 0.0
    duration_s: Spread = field(default_factory=Spread)
    durations: Int64s = field(default_factory=lambda: np.zeros(len(classes.DURATIONS), np.int64))
    sizes: Tally = field(default_factory=Tally)
    short_sides: Int64s = field(default_factory=lambda: np.zeros(len(classes.SHORT_SIDES), np.int64))
    aspects: Int64s = field(default_factory=lambda: np.zeros(len(classes.ASPECTS), np.int64))
    labels: Tally = field(default_factory=Tally)
    languages: Tally = field(default_factory=Tally)
    best: list[tuple[int, int, int]] = field(default_factory=list)
    """Of the samples to show: (-hash of the key, row, run), a heap with the largest hash on top."""

    @property
    def samples(self) -> int:
        return int(self.splits.sum())


@dataclass(slots=True)
class Scan:
    """What is collected of a version. kinds: name -> its part; columns: name -> numbers or names; spans: name ->
    (first, last) of a column of times; start [parts + 1]: number of each part's first row; facts: number of a row
    that was chosen to be shown -> what the table says of it."""

    splits: list[str]
    kinds: dict[str, KindScan]
    columns: dict[str, Spread | Tally]
    spans: dict[str, tuple[Any, Any]]
    licences: Tally
    raw: RawObjects
    start: Int64s
    facts: dict[int, dict[str, Any]]
    n_examples: int

    def row(self, place: int) -> tuple[int, int]:
        """(position of the part, row in it) of a row of the whole version."""
        part = int(np.searchsorted(self.start, place, side="right")) - 1
        return part, place - int(self.start[part])


class _Names:
    """Codes for names, in the order in which they come; from MAX_NAMES on all others are one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        known = self._codes.get(name)
        if known is not None:
            return known
        wanted = name if len(self.names) < MAX_NAMES - 1 else OTHERS
        if wanted not in self._codes:
            self._codes[wanted] = len(self.names)
            self.names.append(wanted)
        return self._codes[wanted]

    def codes(self, values: pa.Array, unknown: Int64s) -> Int64s:
        """One per value; nulls and blanks take theirs from `unknown`."""
        encoded = values.cast(pa.string()).dictionary_encode()
        words = encoded.dictionary.to_pylist()
        places = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False).astype(np.int64)
        found = np.array([self.code(word) if word.strip() else -1 for word in words] + [-1], np.int64)[places]
        return np.where(found < 0, unknown, found)


def scan(version: Version, *, n_examples: int) -> Scan:
    """Read the samples table. Raises: Corrupt; ObjectNotFound; FormatTooNew."""
    return _Scanner(version, n_examples).run()


class _Scanner:
    """One scan. Rows of the version are numbered through: row r of the part at position p is start[p] + r."""

    def __init__(self, version: Version, n_examples: int) -> None:
        self._version, self._n_examples = version, n_examples
        parts = version.parts
        self._start = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)])
        self._live = np.ones(int(self._start[-1]), bool)
        for position in np.flatnonzero(parts.n_live != parts.n_rows).tolist():
            self._live[self._start[position] : self._start[position + 1]] = parts.live_members(position)
        fields = [part_fields(version, position) for position in _layouts(version)]
        self._layout = _layout_of_parts(version)
        self._modality = [classes.modality_of(names) for names in fields]
        self._sounds = [
            self._modality[i] == "video" and classes.media_field(names, "audio") is not None
            for i, names in enumerate(fields)
        ]
        self._kind_names, self._split_names = _Names(), _Names()
        self._no_split = self._split_names.code(NO_SPLIT)
        self._kind = np.repeat(self._kinds_by_fields(), parts.n_rows).astype(np.int16)
        self._split = np.full(len(self._live), self._no_split, np.int16)
        self._columns: dict[str, Spread | Tally] = {}
        self._spans: dict[str, tuple[Any, Any]] = {}
        self._licences, self._raw = Tally(), RawObjects(version.manifest["columns"])
        self._kinds: dict[int, KindScan] = {}
        self._runs, self._run = _runs(version), 0

    def _kinds_by_fields(self) -> Int64s:
        """[parts]: the kind of samples whose own column says none."""
        codes = np.array([self._kind_names.code(name) for name in self._modality], np.int64)
        return codes[self._layout]

    def run(self) -> Scan:
        total = sum(file["n_rows"] for run in self._runs for file in run)
        numbered = list(enumerate(self._runs))
        for self._run, run in progress(
            numbered, "samples table", lambda one: sum(file["n_rows"] for file in one[1]), total
        ):
            opened = [self._open(file) for file in run]
            for table in opened:
                self._name_rows(table)
            for table in opened:
                for rows, batch in self._batches(table, self._wanted(table)):
                    self._add(rows, batch)
        for code in np.unique(self._kind[self._live]).tolist():
            mine = self._live & (self._kind == code)
            kind = self._of(code)
            kind.splits = np.bincount(self._split[mine], minlength=len(self._split_names.names))
            kind.modality = self._modality[int(self._layouts_of(np.array([mine.argmax()]))[0])]
            kind.raw_objects = self._raw.distinct(code)
        kinds = {self._kind_names.names[code]: found for code, found in self._kinds.items() if found.samples}
        return Scan(
            splits=self._split_names.names,
            kinds=dict(sorted(kinds.items(), key=lambda item: (-item[1].samples, item[0]))),
            columns=dict(sorted(self._columns.items())),
            spans=dict(sorted(self._spans.items())),
            licences=self._licences,
            raw=self._raw,
            start=self._start,
            facts=self._facts(),
            n_examples=self._n_examples,
        )

    def _facts(self) -> dict[int, dict[str, Any]]:
        """Of the chosen rows, from the files of their runs once more."""
        chosen = {row: run for kind in self._kinds.values() for _, row, run in kind.best}
        facts: dict[int, dict[str, Any]] = {row: {} for row in chosen}
        for run in sorted(set(chosen.values())):
            mine = np.array([row for row, where in chosen.items() if where == run])
            for file in self._runs[run]:
                table = self._open(file)
                names = [name for name in FACTS if name in table.schema_arrow.names]
                for rows, batch in self._batches(table, names):
                    for at in np.flatnonzero(np.isin(rows, mine)).tolist():
                        facts[int(rows[at])].update(batch.slice(at, 1).to_pylist()[0])
        return facts

    def _open(self, file: dict[str, Any]) -> pq.ParquetFile:
        data = get_table_bytes(self._version.store, TableFile.from_json(file))
        name = f"{self._version.store.url}/{file['path']}"
        try:
            table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        except pa.ArrowException as error:
            raise Corrupt(f"{name} is not a readable Parquet file: {error}") from error
        check_schema_version(table.schema_arrow, name)
        return table

    def _batches(
        self, table: pq.ParquetFile, columns: Sequence[str]
    ) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """(rows of the version, these columns of them), live samples only."""
        if not columns:
            return
        for batch in table.iter_batches(BATCH_ROWS, columns=["part", "row", *columns]):
            positions = self._version.parts.positions(pa.chunked_array([batch.column("part")]))
            rows = self._start[positions] + batch.column("row").to_numpy()
            alive = self._live[rows]
            if not alive.all():
                rows, batch = rows[alive], batch.filter(pa.array(alive))
            if len(rows):
                yield rows, batch

    def _name_rows(self, table: pq.ParquetFile) -> None:
        """The kind and split of the run's rows, where it says so."""
        found = [name for name in ("kind", "split") if name in table.schema_arrow.names]
        for rows, batch in self._batches(table, found):
            if "kind" in found:
                codes = self._kind_names.codes(batch.column("kind"), self._kind[rows].astype(np.int64))
                self._kind[rows] = codes
            if "split" in found:
                unknown = np.full(len(rows), self._no_split, np.int64)
                self._split[rows] = self._split_names.codes(batch.column("split"), unknown)

    def _wanted(self, table: pq.ParquetFile) -> list[str]:
        known = {*RawObjects.COLUMNS, *(["key"] if self._n_examples else [])}
        return [
            name
            for name in table.schema_arrow.names
            if name not in ("part", "row") and (name in known or name not in KEY_COLUMNS)
        ]

    def _add(self, rows: Int64s, batch: pa.RecordBatch) -> None:
        names = set(batch.schema.names)
        kinds = self._kind[rows]
        for name in sorted(names - set(KEY_COLUMNS)):
            self._add_column(name, batch.column(name))
        if "licence" in names:
            self._licences.add(_told_licences(batch.column("licence")))
        self._raw.add(kinds, batch)
        for code in np.unique(kinds).tolist():
            mine = np.flatnonzero(kinds == code)
            whole = len(mine) == len(rows)
            of_kind = batch if whole else batch.take(pa.array(mine))
            self._add_of_kind(self._of(code), rows if whole else rows[mine], of_kind, names)

    def _of(self, code: int) -> KindScan:
        found = self._kinds.get(code)
        if found is None:
            n = MAX_NAMES + 1
            found = self._kinds[code] = KindScan("", np.zeros(n, np.int64), np.zeros(n, np.float64))
        return found

    def _add_column(self, name: str, values: pa.Array) -> None:
        kind = values.type
        if pa.types.is_boolean(kind):
            self._tally(name).add(pc.if_else(values, "yes", "no"))
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self._tally(name).add(values)
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            # An int column may be a double one in another run; the manifest has the type that holds both.
            whole = "int" in self._version.manifest["columns"][name]["type"]
            spread = self._columns.setdefault(name, Spread(whole=whole))
            if isinstance(spread, Spread):
                spread.add(_floats(values))
        elif pa.types.is_timestamp(kind) and values.null_count < len(values):
            told = pc.min_max(values)
            first, last = told["min"].value, told["max"].value
            low, high = self._spans.get(name, (first, last))
            self._spans[name] = (min(low, first), max(high, last))

    def _tally(self, name: str) -> Tally:
        tally = self._columns.setdefault(name, Tally())
        return tally if isinstance(tally, Tally) else Tally()

    def _add_of_kind(self, kind: KindScan, rows: Int64s, batch: pa.RecordBatch, names: set[str]) -> None:
        if "key" in names and self._n_examples:
            self._choose(kind, rows, batch.column("key"))
        if names.issuperset(_SIDES):
            _add_sides(kind, *(_floats(batch.column(name)) for name in _SIDES))
        if "label" in names:
            kind.labels.add(_not_blank(batch.column("label")))
        for name in _LANGUAGE:
            if name in names and pa.types.is_string(batch.schema.field(name).type):
                kind.languages.add(_not_blank(batch.column(name)))
        if "duration_s" in names:
            seconds = _floats(batch.column("duration_s"))
            kind.duration_s.add(seconds[seconds >= 0])
            known = np.flatnonzero(seconds >= 0)
            kind.durations += np.bincount(
                classes.duration_class(seconds[known]), minlength=len(kind.durations)
            )
            kind.seconds += np.bincount(
                self._split[rows[known]], weights=seconds[known], minlength=len(kind.seconds)
            )
            with_sound = np.array(self._sounds)[self._layouts_of(rows[known])]
            kind.sound_s += float(seconds[known][with_sound].sum())

    def _layouts_of(self, rows: Int64s) -> Int64s:
        return self._layout[np.searchsorted(self._start, rows, side="right") - 1]

    def _choose(self, kind: KindScan, rows: Int64s, keys: pa.Array) -> None:
        """Keep the rows whose keys have the smallest hashes: the same samples are shown by every version that has
        them, whatever else it has."""
        for row, key in zip(rows.tolist(), keys.to_pylist(), strict=True):
            hashed = -int.from_bytes(key_hash(key)[:8], "little")
            if len(kind.best) < CANDIDATES * self._n_examples:
                heapq.heappush(kind.best, (hashed, row, self._run))
            elif hashed > kind.best[0][0]:
                heapq.heapreplace(kind.best, (hashed, row, self._run))


def _add_sides(kind: KindScan, width_px: np.ndarray[Any, Any], height_px: np.ndarray[Any, Any]) -> None:
    known = np.flatnonzero((width_px > 0) & (height_px > 0) & (width_px < 2**31) & (height_px < 2**31))
    width_px, height_px = width_px[known], height_px[known]
    kind.sizes.add_codes(width_px.astype(np.int64) * 2**32 + height_px.astype(np.int64))
    kind.short_sides += np.bincount(
        classes.short_side_class(width_px, height_px), minlength=len(kind.short_sides)
    )
    kind.aspects += np.bincount(classes.aspect_class(width_px, height_px), minlength=len(kind.aspects))


def _floats(values: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64, null is NaN; NaN for what is no number at all."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return np.full(len(values), np.nan)
    found: np.ndarray[Any, np.dtype[np.float64]] = (
        values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    )
    return found


def _not_blank(values: pa.Array) -> pa.Array:
    text = values.cast(pa.string())
    return pc.if_else(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(text)), 0), None, text)


def _told_licences(values: pa.Array) -> pa.Array:
    """Null where the column says that nobody knows."""
    encoded = values.cast(pa.string()).dictionary_encode()
    words = [None if classes.is_unknown_licence(word) else word for word in encoded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(encoded.indices)


def _runs(version: Version) -> list[list[dict[str, Any]]]:
    """The files of the samples table, those that one change wrote together."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for file in version.manifest["samples"]:
        runs.setdefault(file["path"].rpartition("/")[0], []).append(file)
    return list(runs.values())


def _layout_of_parts(version: Version) -> Int64s:
    """[parts]: parts with the same groups have the same number, counted in the order of the parts."""
    parts = version.parts
    groups = sorted(parts.groups)
    have = np.stack([parts.has_group(group) for group in groups], axis=1) if groups else None
    if have is None:
        return np.zeros(len(parts), np.int64)
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in have], np.int64)


def _layouts(version: Version) -> list[int]:
    """Of each layout, the position of the first part that has it."""
    _, first = np.unique(_layout_of_parts(version), return_index=True)
    return [int(position) for position in first]


def part_fields(version: Version, position: int) -> frozenset[str]:
    """The fields that samples of one part have."""
    groups = [group for group in version.parts.groups if version.parts.has_group(group)[position]]
    return frozenset(name for group in groups for name in version.manifest["groups"][group]["field_nbytes"])
