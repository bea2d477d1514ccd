"""Usage and goodput of runs: their starts, by scheduler and record."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loader.dataset.log.entries import DAMAGED
from loader.errors import EngineUnreachable, RunNotFound
from loader.storage import Store

from ...checkpoints.ranks import map_in_order
from ...units import utc_us
from ...usage.sacct import NO_ACCOUNTING, AccountedJob
from ...usage.totals import FAILURES, StartUsage, job_usage
from ..intervals import IntervalSum
from ..launch.launcher import Launcher, Span
from ..launch.run_launcher import first_claim_us
from ..launch.run_log import RankStart
from ..launch.slurm_job import start_spans
from ..run_folder import Event, RunFolder, runs
from .allocations import match_attempts, record_allocations, span_allocations, span_starts, with_unaccounted
from .starts import AttemptGoodput, goodput, restarts, span_goodput, totals
from .stretches import NEW_STEPS, PARTS, STOPS

RUNS_AT_ONCE = 16
"""Runs whose records are read at once."""
CLOCKS_US = 60_000_000
"""Most by which the clocks of a launcher and of a submit may differ, in us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """Starts, and what could not be read."""

    starts: Sequence[StartUsage]
    """All starts, of runs and of other jobs."""
    problems: Sequence[str] = ()
    """Runs whose record is damaged: their time counts as unknown."""


RankStarts = Callable[[str], Sequence[RankStart]]
"""Name of a run -> starts of its ranks, by its launcher's notes."""


def slurm_usage(
    store: Store, jobs: Sequence[AccountedJob], now_us: int, rank_starts: RankStarts | None = None
) -> UsageRecord:
    """Return the usage of Slurm's jobs: a record's runs with their goodput, and all others.

    rank_starts: separates starts that no rank reached, and back-off; costs a command for each run with a job.
    Costs a listing of the record, a listing per run and a request per attempt. A run with a job among these also costs
    a listing, a request per event, and the intervals.
    """
    by_id = defaultdict[str, list[AccountedJob]](list)
    for job in jobs:
        by_id[job.job_id].append(job)

    def read_recorded(run: str) -> tuple[dict[AccountedJob, StartUsage], str]:
        try:
            folder = RunFolder(store, run)
            attempts = folder.attempts()
            # A start's `launcher` is "slurm <job id>".
            ids = {str(facts.get("launcher", "")).removeprefix("slurm ") for facts in attempts.values()}
            own = [job for number in ids for job in by_id.get(number, ()) if job.begun_us is not None]
            # Starts of several jobs: `goodput` counts steps in the order of time.
            own.sort(key=lambda job: job.begun_us or 0)
            spans = start_spans(own)
            if rank_starts is not None and own:
                spans = start_spans(own, rank_starts(run))
            if not any(span_starts(span, attempts, now_us) for span in spans):
                return {}, ""  # job ids of another cluster
            starts = _starts(folder, spans, attempts, now_us)
        except DAMAGED as error:
            return {}, f"{store.url}: the time of {run} counts as unknown: {error}"
        plain = (job_usage(job, now_us, first=job is by_id[job.job_id][0]) for job in own)
        return {
            job: _with_record(usage, run, start) for job, usage, start in zip(own, plain, starts, strict=True)
        }, ""

    of_runs = dict[AccountedJob, StartUsage]()
    problems = list[str]()
    for usages, problem in map_in_order(read_recorded, runs(store), at_once=RUNS_AT_ONCE):
        of_runs |= usages
        if problem:
            problems.append(problem)
    usage = [
        of_runs.get(job) or job_usage(job, now_us, first=place == 0)
        for group in by_id.values()
        for place, job in enumerate(group)
    ]
    return UsageRecord(starts=usage, problems=problems)


def launcher_usage(store: Store, launcher: Launcher, now_us: int) -> UsageRecord:
    """Return the usage of a record's runs by the spans of their launcher: times of this machine, or of pods.

    Costs a listing of the record, and per run a request for its file, each attempt, event and interval.
    """
    usage = list[StartUsage]()
    problems = []
    for run in runs(store):
        try:
            folder = RunFolder(store, run)
            spans = launcher.spans(run)
            if not spans:
                continue
            attempts = folder.attempts()
            gpus = folder.spec().gpus_per_node
            starts = _starts(folder, spans, attempts, now_us)
        except DAMAGED as error:
            problems.append(f"{store.url}: {run} is left out: {error}")
            continue
        user = next((str(facts.get("user", "")) for facts in attempts.values()), "")
        for span, start in zip(spans, starts, strict=True):
            plain = StartUsage(
                user=user,
                begun_us=span.begun_us,
                ended_us=now_us if span.ended_us is None else span.ended_us,
                nodes=span.nodes,
                gpus=gpus * span.nodes,
                failures_us=(span.ended_us,) if span.ended_us and _has_failed(span, start) else (),
            )
            usage.append(_with_record(plain, run, start))
    return UsageRecord(starts=usage, problems=problems)


@dataclass(frozen=True, slots=True)
class _RunStarts:
    starts: list[StartUsage]
    """Starts of one run."""
    problem: str = ""
    """Damage of the record; "" for none."""


def record_starts(store: Store, others: Collection[str]) -> UsageRecord:
    """Return the starts of all runs but some, by their records only: from a first event to a last event or interval.

    others: names of runs whose times a launcher has. GPUs are unknown without a run's file, and count as none. Costs
    as `RecordedUsage`, for each run.
    """
    names = [name for name in runs(store) if name not in others]

    def read(run: str) -> _RunStarts:
        try:
            return _RunStarts(_folder_starts(RunFolder(store, run)))
        except DAMAGED as error:  # Corrupt too: one damaged record hides no other
            return _RunStarts([], f"{store.url}: {run} is left out: {error}")

    usages = list[StartUsage]()
    problems = list[str]()
    for result in map_in_order(read, names, at_once=RUNS_AT_ONCE):
        usages.extend(result.starts)
        if result.problem:
            problems.append(result.problem)
    return UsageRecord(starts=usages, problems=problems)


def _folder_starts(folder: RunFolder) -> list[StartUsage]:
    attempts = folder.attempts()
    events = folder.events()
    keys = folder.interval_keys()
    intervals = folder.interval_sums(keys)
    # If there are very many intervals, only an even choice is read. Each stands for several, itself included.
    intervals_per_read_one = len(keys) / max(1, len(intervals))
    gpus_per_node = 0
    spec = folder.read_spec()
    if spec is not None:
        gpus_per_node = spec.gpus_per_node
    versions: dict[int, tuple[str, ...]] = {}
    for event in events:
        if event.name == "first_batch":
            versions[event.attempt] = event_versions(event)
    starts = list[StartUsage]()
    for allocation in record_allocations(attempts, events, intervals):
        own = [interval for interval in intervals if interval.attempt == allocation.attempt]
        requests = sum(interval.requests for interval in own)
        nbytes = sum(interval.nbytes for interval in own)
        user = attempts[allocation.attempt].get("user", "")
        start = StartUsage(
            user=str(user),
            run=folder.run,
            versions=versions.get(allocation.attempt, ()),
            begun_us=allocation.begun_us,
            ended_us=allocation.ended_us,
            nodes=allocation.nodes,
            gpus=gpus_per_node * allocation.nodes,
            requests=intervals_per_read_one * requests,
            read_nbytes=intervals_per_read_one * nbytes,
        )
        starts.append(start)
    return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUsage:
    """Usage of one run by its record only: from each start's first event to its last, without queue and launch."""

    attempts: int
    """Number of starts."""
    goodput: float
    """Share of the node-seconds in new steps, from 0 to 1."""
    gpu_hours: float | None
    """GPU-hours; None for a run without a file, whose GPUs are unknown."""


def record_usage(folder: RunFolder) -> RecordedUsage | None:
    """Return what a run used so far; None without a record.

    Costs three listings, and a request per attempt, event, interval, and for its file. Raises: Corrupt; StoreError.
    """
    attempts = folder.attempts()
    events = folder.events()
    intervals = folder.interval_sums()
    starts = goodput(record_allocations(attempts, events, intervals), events, intervals)
    if not starts:
        return None
    share = goodput_share(starts)
    try:
        spec = folder.spec()
    except RunNotFound:
        gpu_s = None
    else:
        ranks_per_node = folder.ranks_per_node(attempts)
        gpu_s = 0.0
        for start in starts:
            nodes = attempts[start.attempt]["ranks"] / ranks_per_node[start.attempt]
            gpu_s += start.seconds * nodes * spec.gpus_per_node
    return RecordedUsage(
        attempts=len(starts),
        goodput=0.0 if math.isnan(share) else share,
        gpu_hours=None if gpu_s is None else gpu_s / 3600,
    )


def event_versions(event: Event) -> tuple[str, ...]:
    """Return the names of the dataset versions of a first batch; () if it names none."""
    versions = event.facts.get("versions")
    if not isinstance(versions, list):
        return ()
    return tuple(sorted({str(one["name"]) for one in versions if isinstance(one, dict) and "name" in one}))


def _has_failed(span: Span, start: "SpanUsage") -> bool:
    """Return whether a start failed: it has no event of its end, and its scheduler's state, if any, is a failure."""
    # The event decides first: a pod that saves, stops and exits with status 75 is in the state Failed, too.
    if start.goodput.end in STOPS or span.ended_us is None:
        return False
    states = span.state.upper().split(", ")  # of a JobSet: one for each phase of its pods
    return not span.state or not FAILURES.isdisjoint(states)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanUsage:
    """Goodput, versions and failures of one span, by the record."""

    goodput: AttemptGoodput
    """Its last start, with the time of all of them."""
    versions: tuple[str, ...]
    """Dataset versions that it read."""
    failures_us: tuple[int, ...]
    """UTC microseconds of the failures of its starts."""
    requests: float = 0.0
    """Requests of its loaders, by its intervals."""
    nbytes: float = 0.0
    """Bytes that its loaders read, by its intervals."""


def _starts(
    folder: RunFolder, spans: Sequence[Span], attempts: Mapping[int, Mapping[str, Any]], now_us: int
) -> list[SpanUsage]:
    """Return what the record has of each span; all of its time is unknown if no rank came up in it."""
    groups = [span_allocations(span, attempts, now_us) for span in spans]
    allocations = [one for group in groups for one in group]
    events = folder.events()
    versions = {event.attempt: event_versions(event) for event in events if event.name == "first_batch"}
    # A start that died before its first batch was about to read what the newest one reads.
    newest = versions[max(versions)] if versions else ()
    keys = folder.interval_keys()
    intervals = folder.interval_sums(keys)
    # If there are very many intervals, only an even choice is read. Each stands for several, itself included.
    intervals_per_read_one = len(keys) / max(1, len(intervals))
    # One pass over all spans, since a step is new or repeated by all starts before it.
    starts = iter(goodput(allocations, events, intervals))
    usages = list[SpanUsage]()
    for group in groups:
        own = [next(starts) for _ in group]
        whole = span_goodput(own)
        failures_us = tuple(one.failed_us for one in own if one.failed_us is not None)
        attempts_in = {one.attempt for one in own}
        own_intervals = [interval for interval in intervals if interval.attempt in attempts_in]
        usages.append(
            SpanUsage(
                goodput=whole,
                versions=versions.get(whole.attempt) or newest,
                failures_us=failures_us,
                requests=intervals_per_read_one * sum(interval.requests for interval in own_intervals),
                nbytes=intervals_per_read_one * sum(interval.nbytes for interval in own_intervals),
            )
        )
    return usages


def _with_record(usage: StartUsage, run: str, start: SpanUsage) -> StartUsage:
    """Return the usage of a span with its run. The last start may have failed by both records: it counts once."""
    seconds = start.goodput.seconds
    parts = {part: its_s / seconds for part, its_s in start.goodput.parts.items()} if seconds else {}
    failures_us = start.failures_us
    if usage.failures_us and start.goodput.failed_us is None:
        failures_us += usage.failures_us
    return replace(
        usage,
        run=run,
        versions=start.versions,
        parts=parts,
        failures_us=failures_us,
        requests=start.requests,
        read_nbytes=start.nbytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Times in a run's record."""

    attempts: Mapping[int, Mapping[str, Any]]
    """Number of each start -> its facts."""
    events: Sequence[Event]
    """Events of all starts, in order."""
    intervals: Sequence[IntervalSum]
    """Sums of the intervals, in order."""
    claimed_us: int
    """When a launcher first took the run, in UTC microseconds; 0 if it is not recorded."""


def read_times(folder: RunFolder) -> RunTimes:
    """Return the times in a run's record. Raises: RunNotFound; Corrupt."""
    folder.check_exists()
    return RunTimes(
        attempts=folder.attempts(),
        events=folder.events(),
        intervals=folder.interval_sums(),
        claimed_us=first_claim_us(folder),
    )


def run_goodput(
    folder: RunFolder,
    launcher: Launcher | None,
    times: RunTimes | None = None,
) -> list[AttemptGoodput]:
    """Return the parts of each start's time; by the record only if no launcher has times of the run.

    launcher: None for a run that no launcher of penstock started. times: the run's; None reads them.

    Raises: RunNotFound; Corrupt; EngineUnreachable.
    """
    if times is None:
        times = read_times(folder)
    spans = list[Span]()
    if launcher is not None:
        # A launcher may remember a run of this name whose record was deleted.
        begun_us = times.claimed_us - CLOCKS_US
        accounted = _launcher_spans(launcher, folder.run)
        spans = [span for span in accounted if span.ended_us is None or span.ended_us >= begun_us]
    if spans:
        started = match_attempts(spans, times.attempts, utc_us())
        allocations = with_unaccounted(started, times.attempts)
    else:
        allocations = record_allocations(times.attempts, times.events, times.intervals)
    return goodput(allocations, times.events, times.intervals)


def goodput_shares(starts: Sequence[AttemptGoodput]) -> dict[str, float]:
    """Return part -> share of the node-seconds of all starts, without empty parts; {} if they took no time."""
    seconds = totals(starts)
    whole_s = sum(seconds.values())
    if whole_s <= 0:
        return {}
    return {part: seconds[part] / whole_s for part in PARTS if seconds[part]}


def goodput_share(starts: Sequence[AttemptGoodput]) -> float:
    """Return a run's goodput: the share of its node-seconds that made new steps; NaN if it took no time."""
    shares = goodput_shares(starts)
    if not shares:
        return math.nan
    return shares.get(NEW_STEPS, 0.0)


def goodput_body(starts: Sequence[AttemptGoodput]) -> dict[str, Any]:
    """Return the parts of each start's time, for `--json`."""
    share = goodput_share(starts)
    return {
        "goodput": None if math.isnan(share) else share,
        "parts": totals(starts),
        "starts": [{**asdict(start), "share": start.share} for start in starts],
        "restarts": [asdict(cause) for cause in restarts(starts)],
    }


def _launcher_spans(launcher: Launcher, run: str) -> list[Span]:
    """Return the times of a run; none on a cluster without accounting."""
    try:
        return launcher.spans(run)
    except EngineUnreachable as error:
        if NO_ACCOUNTING in str(error):
            return []
        raise
