"""A sample's relations: training steps that used it, edits to its columns, and look-alikes."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

import loader
from loader.dataset.versions.samples_table import scan_samples
from loader.errors import InvalidRuntime, PenstockError
from loader.order.occurrences import Occurrence

from ..text import clean
from .facets.version_searches import VersionSearches
from .json_record import JsonRecord
from .replays.replays import Replayer
from .replays.training import Training
from .shown_values import version_of

MOST_PLANNED = 1_000_000
"""Steps searched in a plan without a run log, whose steps never end."""
MOST_ASKED = 50
ASK_S = 20.0
"""Runs opened for one page, and seconds after which no more are."""
MOST_HELD = 200
"""Slots listed per run."""
MOST_COLUMNS = 20
"""Edited columns read per version, most recently annotated first."""
COLUMN = "phash"
"""Column: 16 hexadecimal digits per image, joined by `-`."""
FLAT = "phash_flat"
"""Column: true if the hash is meaningless."""
MOST_NEIGHBOURS = 12
"""Most neighbours listed."""
MOST_COMPARED = 20_000_000
"""Largest version whose hashes are compared for a page: 320 MB of them."""
MAX_DISTANCE = 16
"""Largest distance of neighbours, in bits of 64; beyond it, unrelated images match."""
_FORM = "^[0-9a-f]{16}(-[0-9a-f]{16})*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot(JsonRecord):
    """A slot with the sample."""

    step: int
    """Global step."""
    slot: int
    """Global slot."""
    attempt: int
    """0 if planned; else its number as a substitute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSteps(JsonRecord):
    """One run's slots with a sample."""

    training: str
    """Run name or plan hash."""
    n_slots: int
    """In recorded steps; in a plan without a run log, before the page's step."""
    planned: bool
    """True if nothing records that they were trained."""
    slots: tuple[HeldSlot, ...]
    """Last 200, by step; in a packed source, sequences with pieces of the sample."""
    error: str = ""
    """Why some are unknown, or ""."""


def find_sample_slots(
    trainings: Iterable[Training], dataset: str, key: str, ordinal: int, before: int = 0
) -> tuple[HeldSteps, ...]:
    """Return a sample's slots, per run.

    ordinal: in a version. before: end of the search in plans without a run log. Costs as `Plan.steps_of`.
    """
    sources = partial(_dataset_sources, dataset)
    return tuple(_training_slots(one, sources, key, ordinal, before) for one in trainings)


def _dataset_sources(dataset: str, plan: loader.Plan) -> set[str]:
    return {
        one.source
        for name, one in plan.sources.items()
        if (version := version_of(plan, name)) is not None and version.dataset == dataset
    }


def find_item_slots(training: Training, source: str, ordinal: int, before: int) -> tuple[HeldSteps, ...]:
    """Return an item's slots in its own run: other runs may call another dataset by the same name.

    before: end of the search in plans without a run log.
    """
    key = str(ordinal)  # of a plan without its dataset
    return (_training_slots(training, partial(_same_source, source), key, ordinal, before),)


def _same_source(source: str, plan: loader.Plan) -> list[str]:
    return [source] if source in plan.sources else []


class RunSearch:
    """Searches runs for a sample's slots."""

    def __init__(
        self,
        opened: Sequence[Training] = (),
        others: Sequence[str] = (),
        open_run: Callable[[str], Training] | None = None,
        error: str = "",
        newest_first: Sequence[str] = (),
    ) -> None:
        """others: more runs, opened by `open_run`, up to 50 or for 20 s. error: why `others` is incomplete.

        newest_first: all runs, in the order of the results; plans without a run log come after them.
        """
        self._opened = opened
        self._open_run = open_run
        self.error = error
        self._newest_first = {run: position for position, run in enumerate(newest_first)}
        self.unsearched = tuple(others)
        """Names of the runs that are not searched yet."""

    def find_slots(
        self, dataset: str, key: str, ordinal: int, own: Training | None = None, before: int = 0
    ) -> tuple[HeldSteps, ...]:
        """Return the slots of a sample in every run (`find_sample_slots`): `own` first, then the newest."""
        name = None
        if own is not None:
            name = own.name
        others = [one for one in self._opened if one.name != name]
        own_results = find_sample_slots([own] if own is not None else [], dataset, key, ordinal, before)
        results = find_sample_slots(others, dataset, key, ordinal)
        self.unsearched = tuple(run for run in self.unsearched if run != name)
        until = time.monotonic() + ASK_S
        asked = 0
        while self._open_run is not None and asked < min(MOST_ASKED, len(self.unsearched)):
            if asked and time.monotonic() > until:
                break
            run = self.unsearched[asked]
            asked = asked + 1
            try:
                results += find_sample_slots([self._open_run(run)], dataset, key, ordinal)
            except PenstockError as error:  # one run failed; the others are still searched
                text = clean(f"{type(error).__name__}: {error}", 400)
                results += (HeldSteps(training=run, n_slots=0, planned=False, slots=(), error=text),)
        self.unsearched = self.unsearched[asked:]
        # The page's own run stays first: the person came from it.
        return (*own_results, *sorted(results, key=self._age))

    def _age(self, result: HeldSteps) -> int:
        """Return the position of a result's run among the runs, newest first."""
        n_runs = len(self._newest_first)
        return self._newest_first.get(result.training, n_runs)


def find_slots(
    training: Training,
    sources: Callable[[loader.Plan], Iterable[str]],
    key: str,
    before: int,
    ordinal: int | None = None,
    recipe: Replayer | None = None,
) -> tuple[list[Occurrence], list[PenstockError]]:
    """Return (a sample's slots in steps 0 ... before - 1, errors). Searches each step under its own plan.

    sources: plan -> sources to search; picklable if there is a recipe. recipe: has the names of datasets' items. A plan
    without the sample adds an InvalidRuntime.
    """
    search = partial(_occurrences, sources=sources, key=key, before=before, ordinal=ordinal)
    slots: set[Occurrence] = set()
    errors: list[PenstockError] = []
    plans = training.plans(before)
    for plan_hash, step in plans.items():
        try:
            if recipe is None:
                with training.open_replay(step) as replay:
                    occurrences = search(replay)
            else:
                occurrences = recipe.inspect(training.plan_setting(step), search)
            slots.update(
                one for one in occurrences if len(plans) == 1 or training.plan_hash(one.step) == plan_hash
            )
        except PenstockError as error:
            errors.append(error)
    return sorted(slots), errors


def _occurrences(
    replay: loader.Replay,
    sources: Callable[[loader.Plan], Iterable[str]],
    key: str,
    before: int,
    ordinal: int | None,
) -> list[Occurrence]:
    slots = []
    for source in sources(replay.plan):
        slots += replay.steps_of(source, key, before=before, ordinal=ordinal)
    return slots


def _training_slots(
    training: Training,
    sources: Callable[[loader.Plan], Iterable[str]],
    key: str,
    ordinal: int,
    before: int,
) -> HeldSteps:
    planned = training.trail is None and training.metrics is None
    before = min(before, MOST_PLANNED) if planned else training.last_step + 1
    slots, errors = find_slots(training, sources, key, before, ordinal)
    if training.trail is not None and slots:
        recorded = training.are_recorded(np.array([one.step for one in slots]))
        slots = [one for one, there in zip(slots, recorded.tolist(), strict=True) if there]
    # Even if a version was deleted, the page shows the rest. Plans without the sample are not an error.
    shown_errors = [one for one in errors if not isinstance(one, InvalidRuntime)][-1:]
    return HeldSteps(
        training=training.name,
        n_slots=len(slots),
        planned=planned,
        slots=tuple(
            HeldSlot(step=one.step, slot=one.slot, attempt=one.attempt) for one in slots[-MOST_HELD:]
        ),
        error="".join(clean(f"{type(one).__name__}: {one}", 400) for one in shown_errors),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEdit(JsonRecord):
    """An edit to a sample's column."""

    column: str
    """Column name."""
    value: str
    """New value; "" if removed."""
    annotation: str
    """Annotation name."""
    author: str
    at: str
    """UTC."""


def column_edits(version: loader.Version, ordinal: int) -> tuple[ColumnEdit, ...]:
    """Return a sample's edits by column, oldest first.

    Reads each edited column's annotations and all keys. Raises: StoreError; Corrupt.
    """
    newest = [name for one in reversed(version.annotations) for name in one.columns]
    rows: list[ColumnEdit] = []
    for column in list(dict.fromkeys(newest))[:MOST_COLUMNS]:
        edits = version.edits(column)
        names = edits.collect_schema().names()
        facts = {
            name: f"edit_{name}" if f"edit_{name}" in names else name
            for name in ("removed", "annotation", "annotated_by", "annotated_at")
        }
        rows += [
            ColumnEdit(
                column=clean(column, 80),
                value="" if row[facts["removed"]] else clean(row[column], 400),
                annotation=clean(row[facts["annotation"]], 80),
                author=clean(row[facts["annotated_by"]], 80),
                at=f"{row[facts['annotated_at']]:%Y-%m-%d %H:%M:%S}",
            )
            for row in edits.collect().to_dicts()
            if row["ordinal"] == ordinal
        ]
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour(JsonRecord):
    """A similar sample."""

    ordinal: int
    """Index in the version."""
    key: str
    """Sample key."""
    distance: int
    """Differing bits of the hashes; the largest of several images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarSample(JsonRecord):
    """A sample with a similar embedding."""

    ordinal: int
    """Index in the version."""
    key: str
    score: float
    """Cosine, -1 to 1."""


def similar_samples(
    version: loader.Version,
    ordinal: int,
    key: str,
    searches: VersionSearches | None,
) -> tuple[SimilarSample, ...]:
    """Return up to 12 samples with the most similar embeddings, the best first; () if a page would wait for them."""
    if searches is None:
        return ()
    result = searches.look_alikes(version, ordinal, key)
    if result is None:
        return ()
    rows = zip(
        result.ordinals.tolist(),
        result.keys(),
        result.scores.tolist(),
        strict=True,
    )
    return tuple(SimilarSample(ordinal=other, key=name, score=score) for other, name, score in rows)


def phash_neighbours(version: loader.Version, ordinal: int) -> tuple[Neighbour, ...]:
    """Return up to 12 samples whose `phash` differs by at most 16 bits, nearest first, among equal image counts.

    Reads that column, unless the version has more than `MOST_COMPARED` samples.
    """
    import polars as pl

    columns = version.manifest["columns"]
    if COLUMN not in columns or len(version) > MOST_COMPARED:
        return ()
    flat = pl.col(FLAT).fill_null(False) if FLAT in columns else pl.lit(False)
    names = [name for name in (COLUMN, FLAT) if name in columns]
    table = scan_samples(version, names).select("ordinal", COLUMN, flat.alias(FLAT)).collect()
    if table.schema[COLUMN] != pl.String:
        return ()
    table = table.filter(~table[FLAT] & table[COLUMN].str.contains(_FORM).fill_null(False))
    own = table.filter(table["ordinal"] == ordinal)
    if not len(own):
        return ()
    n_digits = len(own[COLUMN][0])
    table = table.filter(table[COLUMN].str.len_chars() == n_digits)
    text = "".join(table[COLUMN].to_list()).replace("-", "")
    hashes = np.frombuffer(bytes.fromhex(text), ">u8").reshape(len(table), -1)
    ordinals = table["ordinal"].to_numpy()
    own_hash = hashes[np.flatnonzero(ordinals == ordinal)]
    distances = np.bitwise_count(hashes ^ own_hash).max(axis=1).astype(np.int64)
    order = np.argsort(distances, kind="stable")
    near = order[(distances[order] <= MAX_DISTANCE) & (ordinals[order] != ordinal)][:MOST_NEIGHBOURS]
    keys = version.keys(ordinals[near]) if len(near) else []
    return tuple(
        Neighbour(ordinal=int(ordinals[row]), key=key, distance=int(distances[row]))
        for row, key in zip(near.tolist(), keys, strict=True)
    )
