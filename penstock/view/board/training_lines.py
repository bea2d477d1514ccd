"""One line per training: state, last step, loss line, goodput, waits, newest checkpoint, what it reads."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import loader
from loader.errors import ObjectNotFound, PenstockError, StoreError
from loader.json_text import parse_json_object
from loader.run.trail.trail_outline import ListedRun, TrailOutline, trail_outline
from loader.storage import Store

from ...checkpoints import marker
from ...metrics.conditions import RunState
from ...metrics.recent_waits import interval_waits, recent_waits
from ...text import clean
from ...train.goodput.run_usage import goodput_share
from ...train.submitting import RunBrief, briefs, has_resumed
from ..json_record import JsonRecord
from ..polyline import SPARK_WIDTH, polyline_points
from ..run_goodputs import RunGoodputs
from ..runs.run_state import StateFacts, state_from_facts, state_from_record

_VERSION = re.compile(r"v-[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLine(JsonRecord):
    run: str
    """Name."""
    state: str
    """running, stalled, silent, finished, stopped or failed."""
    last_step: int
    """Last recorded step; -1 without one."""
    last_us: int
    """When it was delivered, in UTC microseconds; 0 without one."""
    median_step_us: float
    """Median time between two steps; NaN if unknown."""
    metric: str
    """Metric of the line, or ""."""
    now: float
    """Last value of the line; NaN without one."""
    line: str
    """SVG points of the line; "" for fewer than two values."""
    line_ends: tuple[float, float]
    """First and last value of the line; NaN without one."""
    ticks: tuple[float, ...]
    """Positions of steps with a metric that is not finite, along the line."""
    n_not_finite: int
    """Such steps, among those read."""
    first_not_finite: int
    """The first of them; -1 without one."""
    is_whole: bool
    """False if some of the run log was not read."""
    waiting: float
    """Share of the steps' time that training waited for data; NaN if unknown."""
    goodput: float
    """Share of the run's time that made its steps; NaN without a record of the run."""
    checkpoint: int
    """Step of the newest checkpoint; -1 without one."""
    reads: tuple[str, ...]
    """Names of the versions that the last start reads; () if unknown."""
    substituted: int = 0
    """Samples that were substituted or masked in the steps read."""
    waits: tuple[float, ...] = ()
    """Share of waiting in each five minutes of the newest fifteen, the newest first; () if unknown."""
    starts_us: tuple[int, ...] = ()
    """Times of the starts, UTC microseconds; () without a record of the run."""
    checkpoint_us: int = 0
    """When the newest checkpoint was saved, UTC microseconds; 0 without an event of it."""
    failure: str = ""
    """Why its last start failed; "" if it did not, or has gone on since."""
    error: str = ""
    """Why the run cannot be read; "" if it can."""
    recorded: RunState | None = None
    """State by the run's record; None without a record."""
    news: str = ""
    """Last news of a run without a recorded end that has been silent for long; "" for others."""

    def at(self, now_s: float) -> "TrainingLine":
        """Return the line with the state at a Unix time, which a run's silence changes."""
        if self.state == "damaged":
            return self
        facts = StateFacts(
            recorded=self.recorded,
            last_step=self.last_step,
            last_us=self.last_us,
            median_step_us=self.median_step_us,
            checkpoint=self.checkpoint,
            started_us=max(self.starts_us, default=0),
        )
        now = state_from_facts(facts, now_s)
        return replace(self, state=now.state, news=now.text)


def run_briefs(store: Store) -> dict[str, RunBrief]:
    """Return run -> its record in short. Costs a listing, and at most three requests a run."""
    return {brief.run: brief for brief in briefs(store)}


def training_line(root: loader.Root, store: Store, listed: ListedRun, brief: RunBrief | None) -> TrainingLine:
    """Return a run's line, without its goodput. A damaged run log has its error there.

    Raises: StoreError for a store that fails.
    """
    try:
        outline = trail_outline(store, listed)
        return _line(root, store, outline, brief)
    except StoreError:
        raise
    except PenstockError as error:
        return _damaged_line(listed.run, str(error))


def with_goodput(
    line: TrainingLine,
    store: Store,
    brief: RunBrief | None,
    goodputs: RunGoodputs,
) -> TrainingLine:
    """Return a run's line with its goodput until now. A damaged record has its error there. Raises: StoreError."""
    if brief is None or line.error:
        return line
    try:
        times, starts = goodputs.starts(store, brief)
    except StoreError:
        raise
    except PenstockError as error:
        return _damaged_line(line.run, str(error))
    saved_us = [event.at_us for event in times.events if event.name == "saved"]
    return replace(
        line,
        goodput=goodput_share(starts),
        waits=recent_waits(interval_waits(times.intervals)),
        starts_us=tuple(facts["at_us"] for facts in times.attempts.values()),
        checkpoint_us=max(saved_us, default=0),
    )


def _line(root: loader.Root, store: Store, outline: TrailOutline, brief: RunBrief | None) -> TrainingLine:
    steps = [step for step, _ in outline.line]
    values = [value for _, value in outline.line]
    first = math.nan
    now = math.nan
    if values:
        first = values[0]
        now = values[-1]
    checkpoint = max(marker.steps(store, outline.run), default=-1)
    first_not_finite = min(outline.not_finite, default=-1)
    return TrainingLine(
        run=outline.run,
        state="running",
        recorded=_record_state(brief),
        last_step=outline.last_step,
        last_us=outline.last_us,
        median_step_us=outline.median_step_us,
        metric=outline.metric,
        now=now,
        line=polyline_points(steps, values),
        line_ends=(first, now),
        ticks=_ticks(outline.not_finite, steps),
        n_not_finite=len(outline.not_finite),
        first_not_finite=first_not_finite,
        is_whole=outline.is_whole,
        substituted=outline.substituted,
        waiting=outline.waiting,
        goodput=math.nan,
        checkpoint=checkpoint,
        reads=_versions_read(root, store, outline),
        failure=_failure(brief),
    )


def _record_state(brief: RunBrief | None) -> RunState | None:
    if brief is None:
        return None
    return state_from_record(brief.events, brief.failed)


def _failure(brief: RunBrief | None) -> str:
    if brief is None:
        return ""
    failed = brief.failed
    if failed is None or has_resumed(failed, brief.events):
        return ""
    return clean(failed.summary(), 300)


def _ticks(steps: Sequence[int], line: Sequence[int]) -> tuple[float, ...]:
    """Return the positions of steps along a line over other steps."""
    if len(line) < 2:
        return ()
    first = line[0]
    last = line[-1]
    places = set[float]()
    for step in steps:
        share = (step - first) / (last - first)
        if 0 <= share <= 1:  # several steps of a long run share a place
            places.add(float(round(SPARK_WIDTH * share)))
    return tuple(sorted(places))


def _versions_read(root: loader.Root, store: Store, outline: TrailOutline) -> tuple[str, ...]:
    """Return the names of the versions in the last start's plan, by its JSON: nothing is opened."""
    plan = ""
    if outline.starts:
        plan = outline.starts[-1].plan
    if not plan:
        return ()
    try:
        body = parse_json_object(store.get(f"plans/{plan}.json").data)
    except (ObjectNotFound, ValueError):
        return ()
    # By their form, wherever a packed, listed or windowed view has them.
    ids = set(_VERSION.findall(str(body.get("sources"))))
    names = list[str]()
    for versions in root.state.datasets.values():
        names.extend(version.name for version in versions if version.id in ids)
    return tuple(names)


def _damaged_line(run: str, error: str) -> TrainingLine:
    return TrainingLine(
        run=run,
        state="damaged",
        last_step=-1,
        last_us=0,
        median_step_us=math.nan,
        metric="",
        now=math.nan,
        line="",
        line_ends=(math.nan, math.nan),
        ticks=(),
        n_not_finite=0,
        first_not_finite=-1,
        is_whole=False,
        waiting=math.nan,
        goodput=math.nan,
        checkpoint=-1,
        reads=(),
        error=clean(error, 400),
    )
