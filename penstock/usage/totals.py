"""Add up what jobs and runs used: GPU-hours, queue hours, failures; by account, user, run, dataset version or GPU.

Only time inside the period counts: a start that began before it counts with its share of each part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..units import WEEK_US
from .sacct import AccountedJob

LOST = ("repeated steps", "waiting for data", "idle", "back-off")
"""Parts of a run's goodput that count as lost."""
FAILURES = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "LAUNCH_FAILED"})
"""States of a start that failed. Preemption, the time limit and cancellation are not failures."""
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUsage:
    """One start of a job, or a job that never started."""

    account: str = ""
    """Account that is billed; "" for none."""
    user: str = ""
    """User's login name; "" if unknown."""
    run: str = ""
    """Training run of penstock; "" for other jobs."""
    versions: tuple[str, ...] = ()
    """Dataset versions that it read, such as "photos@3"; () if unknown."""
    gpu_type: str = ""
    """Scheduler's name for the kind of GPU; "" if unknown."""
    submitted_us: int | None = None
    """UTC microseconds from which it waited; None if it is unknown."""
    begun_us: int | None
    """UTC microseconds of its start; None without one."""
    ended_us: int
    """UTC microseconds of its end, or of the count while it waits or runs."""
    nodes: int = 1
    """Nodes that it had."""
    gpus: int = 0
    """GPUs that it had."""
    asked_gpu_s: float | None = None
    """GPU-seconds that its job asked for, in one start of each job; None: what it had."""
    failures_us: tuple[int, ...] = ()
    """UTC microseconds of its failures: an allocation may begin a run again and again. No preemption, no time limit."""
    requests: float = 0.0
    """Requests of its loaders to stores; 0 without a record."""
    read_nbytes: float = 0.0
    """Bytes that its loaders read; 0 without a record."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Part of `penstock.train.goodput.PARTS` -> share of its time, from 0 to 1; empty without a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Sums of one account, user, run, version or kind of GPU."""

    name: str
    """Its name; "" for starts without one."""
    starts: int = 0
    """Starts that had time in the period."""
    asked: float = 0.0
    """GPU-hours that jobs asked for, by their time limits."""
    allocated: float = 0.0
    """GPU-hours that starts had."""
    new_steps: float = 0.0
    """GPU-hours in steps that no earlier start had done."""
    lost: float = 0.0
    """GPU-hours in repeated steps, waiting for data, and idle."""
    unknown: float = 0.0
    """GPU-hours without a record: other jobs, and gaps of a record."""
    queue_hours: float = 0.0
    """Hours that jobs waited to start."""
    failures: int = 0
    """Starts that failed."""
    node_hours: float = 0.0
    """Node-hours that starts had."""

    @property
    def other(self) -> float:
        """GPU-hours of starting, restoring, saving and stopping."""
        return max(0.0, self.allocated - self.new_steps - self.lost - self.unknown)

    @property
    def failures_per_1000_node_days(self) -> float | None:
        """Failures per 1,000 node-days; None without node-hours."""
        if self.node_hours:
            return self.failures * 24_000 / self.node_hours
        return None


def job_usage(job: AccountedJob, now_us: int, *, first: bool = True) -> StartUsage:
    """Return what a start of a Slurm job used. first: True for the start that counts what its job asked for."""
    ended_us = now_us if job.ended_us is None else job.ended_us
    limit_s = float(job.limit_s)
    # A job without a limit of its own counts as having asked for the time that it took: none before its start.
    if not job.limit_s and job.begun_us is not None:
        limit_s = (ended_us - job.begun_us) / 1e6
    asked_gpus = job.asked_gpus
    # Before its start, a job counts with the GPUs that it asks for.
    if not asked_gpus and job.begun_us is None:
        asked_gpus = job.gpus
    asked_gpu_s = 0.0
    if first:
        asked_gpu_s = asked_gpus * limit_s
    failures_us: tuple[int, ...] = ()
    if job.state in FAILURES and job.ended_us is not None:
        failures_us = (job.ended_us,)
    return StartUsage(
        account=job.account,
        user=job.user,
        gpu_type=job.gpu_type,
        submitted_us=job.submitted_us,
        begun_us=job.begun_us,
        ended_us=ended_us,
        nodes=job.nodes,
        gpus=job.gpus,
        asked_gpu_s=asked_gpu_s,
        failures_us=failures_us,
    )


KEYS: Mapping[str, Callable[[StartUsage], Sequence[str]]] = {
    "account": lambda start: (start.account,),
    "user": lambda start: (start.user,),
    "run": lambda start: (start.run,),
    "dataset": lambda start: start.versions or ("",),
    "gpu": lambda start: (start.gpu_type,),
}
"""Name of a way to group -> names of the rows in which a start counts."""


def group_usage(by: str, starts: Iterable[StartUsage], since_us: int, until_us: int) -> list[UsageRow]:
    """Return a row per name, those with most GPU-hours first. A start that read two versions counts for both."""
    groups = defaultdict[str, list[StartUsage]](list)
    for start in starts:
        for name in KEYS[by](start):
            groups[name].append(start)
    rows = [usage_row(name, group, since_us, until_us) for name, group in groups.items()]
    # Starts outside the period leave rows of zeros. One that failed at once has only its failure.
    used = [row for row in rows if row.starts or row.queue_hours or row.asked or row.failures]
    return sorted(used, key=lambda row: (-row.allocated, -row.node_hours, row.name))


def usage_row(name: str, starts: Iterable[StartUsage], since_us: int, until_us: int) -> UsageRow:
    """Return the sums of starts, in a period of UTC microseconds."""
    sums = defaultdict[str, float](float)
    for start in starts:
        # A job that never started waited until its end, or still waits.
        begun_us = start.ended_us if start.begun_us is None else start.begun_us
        if start.submitted_us is not None:
            sums["queue"] += _seconds_inside(start.submitted_us, begun_us, since_us, until_us)
        # What it asked for counts once, in the period of its submission; of its begin, if that is unknown.
        counted_us = start.submitted_us
        if counted_us is None:
            counted_us = begun_us
        if since_us <= counted_us < until_us:
            asked_gpu_s = start.asked_gpu_s
            if asked_gpu_s is None:
                asked_gpu_s = start.gpus * (start.ended_us - begun_us) / 1e6
            sums["asked"] += asked_gpu_s
        seconds = _seconds_inside(begun_us, start.ended_us, since_us, until_us)
        sums["failures"] += sum(since_us <= at_us < until_us for at_us in start.failures_us)
        if start.begun_us is None or not seconds:
            continue
        gpu_s = start.gpus * seconds
        sums["starts"] += 1
        sums["gpu"] += gpu_s
        sums["node"] += start.nodes * seconds
        sums["new"] += gpu_s * start.parts.get("new steps", 0.0)
        sums["lost"] += gpu_s * sum(start.parts.get(part, 0.0) for part in LOST)
        unknown_share = 1.0  # without a record, all of its time
        if start.parts:
            unknown_share = start.parts.get("unknown", 0.0)
        sums["unknown"] += gpu_s * unknown_share
    return UsageRow(
        name=name,
        starts=int(sums["starts"]),
        asked=sums["asked"] / HOUR_S,
        allocated=sums["gpu"] / HOUR_S,
        new_steps=sums["new"] / HOUR_S,
        lost=sums["lost"] / HOUR_S,
        unknown=sums["unknown"] / HOUR_S,
        queue_hours=sums["queue"] / HOUR_S,
        failures=int(sums["failures"]),
        node_hours=sums["node"] / HOUR_S,
    )


def weekly_gpu_hours(starts: Sequence[StartUsage], since_us: int, until_us: int) -> list[float]:
    """Return GPU-hours per whole week of the period, the last one ending with it."""
    n_weeks = (until_us - since_us) // WEEK_US
    hours = []
    for weeks_before in reversed(range(n_weeks)):
        end_us = until_us - WEEK_US * weeks_before
        gpu_s = sum(
            start.gpus * _seconds_inside(start.begun_us, start.ended_us, end_us - WEEK_US, end_us)
            for start in starts
            if start.begun_us is not None
        )
        hours.append(gpu_s / HOUR_S)
    return hours


def share_inside(start: StartUsage, since_us: int, until_us: int) -> float:
    """Return the share of a start's time in a period of UTC microseconds, from 0 to 1."""
    if start.begun_us is None or start.ended_us <= start.begun_us:
        return 0.0
    inside_s = _seconds_inside(start.begun_us, start.ended_us, since_us, until_us)
    return inside_s * 1e6 / (start.ended_us - start.begun_us)


def _seconds_inside(begun_us: int, ended_us: int, since_us: int, until_us: int) -> float:
    """Return the seconds from begun to ended that lie in the period from since to until; 0 if none does."""
    return max(0, min(ended_us, until_us) - max(begun_us, since_us)) / 1e6
