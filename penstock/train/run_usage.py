"""Usage of runs: their starts, by scheduler and record, for `penstock usage`."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loader.dataset.log.entries import DAMAGED
from loader.errors import RunNotFound
from loader.storage import Store

from ..checkpoints.ranks import several
from ..usage.sacct import AccountedJob
from ..usage.totals import FAILURES, StartUsage, job_usage
from .goodput import (
    STOPS,
    AttemptGoodput,
    goodput,
    recorded_allocations,
    span_allocations,
    span_goodput,
    starts_in,
)
from .launch.launcher import Launcher, Span
from .launch.run_log import RankStart
from .launch.slurm_job import spans_of
from .run_folder import Event, RunFolder, runs

RUNS_AT_ONCE = 16
"""Runs whose records are read at once."""


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

    rank_starts: Tells starts apart that no rank reached, and back-off; costs a command for each run with a job.
    Costs a listing of the record, a listing per run and a request per attempt. A run with a job among these also costs
    a listing, a request per event, and the windows.
    """
    by_id = defaultdict[str, list[AccountedJob]](list)
    for job in jobs:
        by_id[job.job_id].append(job)

    def recorded(run: str) -> tuple[dict[AccountedJob, StartUsage], str]:
        try:
            folder = RunFolder(store, run)
            attempts = folder.attempts()
            ids = {str(facts.get("launcher", "")).removeprefix("slurm ") for facts in attempts.values()}
            own = [job for number in ids for job in by_id.get(number, ()) if job.begun_us is not None]
            own.sort(key=lambda job: job.begun_us or 0)
            spans = spans_of(own)
            if rank_starts is not None and own:
                spans = spans_of(own, rank_starts(run))
            if not any(starts_in(span, attempts, now_us) for span in spans):
                return {}, ""  # job ids of another cluster
            starts = _starts(folder, spans, attempts, now_us)
        except DAMAGED as error:
            return {}, f"{store.url}: the time of {run} counts as unknown: {error}"
        plain = (job_usage(job, now_us, first=job is by_id[job.job_id][0]) for job in own)
        return {
            job: _with_record(usage, run, start) for job, usage, start in zip(own, plain, starts, strict=True)
        }, ""

    of_runs, problems = dict[AccountedJob, StartUsage](), list[str]()
    for usages, problem in several(recorded, runs(store), at_once=RUNS_AT_ONCE):
        of_runs |= usages
        problems += [problem] if problem else []
    usage = [
        of_runs.get(job) or job_usage(job, now_us, first=place == 0)
        for group in by_id.values()
        for place, job in enumerate(group)
    ]
    return UsageRecord(starts=usage, problems=problems)


def launcher_usage(store: Store, launcher: Launcher, now_us: int) -> UsageRecord:
    """Return the usage of a record's runs by the spans of their launcher: times of this machine, or of pods.

    Costs a listing of the record, and per run a request for its file, each attempt, event and window.
    """
    usage, problems = list[StartUsage](), []
    for run in runs(store):
        try:
            folder = RunFolder(store, run)
            spans = launcher.spans(run)
            if not spans:
                continue
            attempts, gpus = folder.attempts(), folder.spec().gpus_per_node
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUsage:
    """Usage of one run by its record only: from each start's first event to its last, without queue and launch."""

    attempts: int
    """Number of starts."""
    goodput: float
    """Share of the time in new steps, from 0 to 1."""
    gpu_hours: float | None
    """GPU-hours; None for a run without a file, whose GPUs are unknown."""


def recorded_usage(folder: RunFolder) -> RecordedUsage | None:
    """Return what a run used so far; None without a record.

    Costs three listings, and a request per attempt, event, window, and for its file. Raises: Corrupt; StoreError.
    """
    attempts, events, windows = folder.attempts(), folder.events(), folder.window_sums()
    starts = goodput(recorded_allocations(attempts, events, windows), events, windows)
    if not starts:
        return None
    seconds = sum(start.seconds for start in starts)
    new_s = sum(start.parts["new steps"] for start in starts)
    try:
        spec = folder.spec()
    except RunNotFound:
        gpu_s = None
    else:
        gpus = spec.gpus_per_node / spec.ranks_per_node
        gpu_s = sum(start.seconds * attempts[start.attempt]["ranks"] * gpus for start in starts)
    return RecordedUsage(
        attempts=len(starts),
        goodput=new_s / seconds if seconds else 0.0,
        gpu_hours=None if gpu_s is None else gpu_s / 3600,
    )


def event_versions(event: Event) -> tuple[str, ...]:
    """Return the names of the dataset versions of a first batch; () if it names none."""
    versions = event.facts.get("versions")
    if not isinstance(versions, list):
        return ()
    return tuple(sorted({str(one["name"]) for one in versions if isinstance(one, dict) and "name" in one}))


def _has_failed(span: Span, start: "SpanUsage") -> bool:
    """Return whether a start failed: it has no event of its end, and its scheduler's word, if any, is a failure.

    A pod that stops by exit status 75 is Failed, too.
    """
    if start.goodput.end in STOPS or span.ended_us is None:
        return False
    return not span.state or not FAILURES.isdisjoint(
        span.state.upper().split(", ")
    )  # a word per phase of pods


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanUsage:
    """Goodput, versions and failures of one span, by the record."""

    goodput: AttemptGoodput
    """Its last start, with the time of all of them."""
    versions: tuple[str, ...]
    """Dataset versions that it read."""
    failures_us: tuple[int, ...]
    """UTC microseconds of the failures of its starts."""


def _starts(
    folder: RunFolder, spans: Sequence[Span], attempts: Mapping[int, Mapping[str, Any]], now_us: int
) -> list[SpanUsage]:
    """Return what the record has of each span; all of its time is unknown if no rank came up in it."""
    groups = [span_allocations(span, attempts, now_us) for span in spans]
    allocations = [one for group in groups for one in group]
    events = folder.events()
    versions = {event.attempt: event_versions(event) for event in events if event.name == "first_batch"}
    newest = versions[max(versions)] if versions else ()
    starts = iter(goodput(allocations, events, folder.window_sums()))
    usages = list[SpanUsage]()
    for group in groups:
        own = [next(starts) for _ in group]
        whole = span_goodput(own)
        failures_us = tuple(one.failed_us for one in own if one.failed_us is not None)
        usages.append(
            SpanUsage(
                goodput=whole,
                versions=versions.get(whole.attempt) or newest,
                failures_us=failures_us,
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
    return replace(usage, run=run, versions=start.versions, parts=parts, failures_us=failures_us)
