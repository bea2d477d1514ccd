"""Runs on Slurm: one job per run, found by its name, whose script begins the ranks by srun.

The job's name follows from record and run. Two submits at once leave one job: the younger one is cancelled, and
`singleton` keeps it waiting until then.
"""

import hashlib
import logging
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from loader.dataset.root import Root
from loader.errors import EngineUnreachable, InvalidCluster, InvalidSpec

from ...compute.cluster import Cluster
from ...compute.engines.slurm import HELD, RUNNING, WAITING, SlurmQueue, mebibytes, plain
from ...compute.engines.slurm_listing import (
    QueuedJob,
    cluster_name,
    command_groups,
    list_jobs,
    preemption_words,
)
from ...compute.engines.slurm_why import clock, why_waiting
from ...text import line_text
from ...usage.sacct import AccountedJob, account_jobs
from ..record_objects.json_object import LIMIT
from ..run_spec import RunSpec
from .launcher import NEXT_START, RunStatus, Span
from .run_log import (
    LogPart,
    MissingLog,
    RankStart,
    exit_status,
    last_words,
    log_part,
    missing_log,
    newest_part,
    parse_starts,
    rank_starts,
    run_text,
    spans_text,
    start_part,
    without_ranks,
)
from .slurm_job_script import NodeSettings, batch_script

_log = logging.getLogger(__name__)


class SlurmJobs:
    """Runs of one record on a Slurm cluster."""

    def __init__(self, record: str, cluster: Cluster) -> None:
        self._record = Root(record).url
        self._cluster = cluster
        self._queue = SlurmQueue(cluster.submit)

    def name(self) -> str:
        """See `Launcher.name`."""
        return f"Slurm cluster {cluster_name(self._queue.answer)}"

    def describe(self, spec: RunSpec) -> str:
        """See `Launcher.describe`."""
        command = shlex.join(["sbatch", *self._options(spec)])
        return f"{command} <<'PENSTOCK'\n{self._script(spec)}PENSTOCK"

    def notes(self, spec: RunSpec) -> list[str]:
        """See `Launcher.notes`."""
        return []

    def check(self, spec: RunSpec) -> str:
        """See `Launcher.check`."""
        return self._sbatch(spec, "--test-only")

    def submit(self, spec: RunSpec) -> str:
        """See `Launcher.submit`."""
        self._options(spec)
        jobs = self._jobs(spec.run)
        if not self._release(jobs):  # a new job goes on at the newest checkpoint
            self._queue.cancel(self._name(spec.run))
            jobs = self._jobs(spec.run)
        place = ""
        if jobs:
            place = _place(jobs[0])
        if jobs and _job_file(jobs[-1]) not in ("", spec.digest):
            return f"{place}; {self._follow(spec, jobs)}"
        try:
            if not jobs:
                job_id = self._sbatch(spec)
                place = f"Slurm job {job_id}"
                jobs = self._jobs(spec.run)
                if any(int(job.job_id) < int(job_id) for job in jobs):  # of another submit at this moment
                    self._queue.answer(["scancel", job_id])
                if not jobs:
                    return place  # it has ended
                place = _place(jobs[0])
            grace = preemption_words(self._queue.answer, jobs[0], spec.grace_s)
        except (EngineUnreachable, InvalidCluster) as error:
            if not place:
                raise
            grace = str(error)  # Slurm has the job
        if grace:
            place += f"; {grace}"
        return place

    def _follow(self, spec: RunSpec, jobs: Sequence[QueuedJob]) -> str:
        """Submit a job with another file of a run; return where it is, in words. jobs: earlier ones of the run.

        `singleton` lets it begin when they have ended. Their script ends instead of another start, see `superseded`.
        """
        job_id = self._sbatch(spec)
        if waiting := [job.job_id for job in jobs if job.state in WAITING]:
            self._queue.answer(["scancel", "--state=PENDING", *waiting])
        return f"{NEXT_START}: Slurm job {job_id}"

    def status(self, run: str) -> RunStatus:
        """See `Launcher.status`."""
        status = self.statuses([run])[run]
        if status.state == "ended" and self._cluster.logs:
            lines = spans_text(self._queue.answer, self._log(run)).splitlines()
            return replace(status, exit_status=exit_status(lines))
        if status.state != "running":
            return status
        return replace(status, reason=self._without_ranks(run))

    def statuses(self, runs: Sequence[str]) -> dict[str, RunStatus]:
        """See `Launcher.statuses`. Releases jobs that Slurm holds for ever."""
        run_of_job = {self._name(run): run for run in runs}
        queued = {run: list[QueuedJob]() for run in runs}
        for job in list_jobs(self._queue.answer, *run_of_job):
            queued[run_of_job[job.name]].append(job)
        self._release([job for jobs in queued.values() for job in jobs])
        # The queue lists an ended job for some minutes only.
        accounted = {self._name(run): list[AccountedJob]() for run, jobs in queued.items() if not jobs}
        for start in self._starts([*accounted]):
            accounted[start.name].append(start)
        statuses: dict[str, RunStatus] = {}
        for run, jobs in queued.items():
            statuses[run] = _status(jobs, accounted.get(self._name(run), []))
        ended = [run for run, status in statuses.items() if status.state == "ended"]
        for run, words in self._last_words(ended).items():
            statuses[run] = replace(statuses[run], reason=words)
        return statuses

    def _last_words(self, runs: Sequence[str]) -> dict[str, str]:
        """Return the script's last line for each run that ended; none if their logs cannot be read."""
        if not self._cluster.logs:
            return {}
        runs_by_log = {self._log(run): run for run in runs}
        words = dict[str, str]()
        try:
            for group in command_groups([*runs_by_log]):
                for log, line in last_words(self._queue.answer, group).items():
                    words[runs_by_log[log]] = line_text(line)
        except EngineUnreachable as error:
            _log.warning("why runs ended is not read: %s", error)
        return words

    def why(self, run: str) -> str:
        """See `Launcher.why`. Releases jobs that Slurm holds for ever."""
        jobs = self._jobs(run)
        running = any(job.state in RUNNING for job in jobs)  # then another waits with a changed file
        waiting = [job for job in jobs if job.state in WAITING and not running]
        text = ""
        if waiting:
            text = why_waiting(self._queue.answer, waiting[0])
        self._release(jobs)
        return "\n".join(filter(None, [text, self._without_ranks(run) if jobs else ""]))

    def cancel(self, run: str) -> None:
        """See `Launcher.cancel`."""
        self._queue.cancel(self._name(run))

    def withdraw(self, run: str) -> None:
        """See `Launcher.withdraw`."""
        self._queue.answer(["scancel", "--state=PENDING", f"--name={self._name(run)}"])

    def spans(self, run: str) -> list[Span]:
        """See `Launcher.spans`."""
        return start_spans(account_jobs(self._queue.answer, name=self._name(run)), self.rank_starts(run))

    def rank_starts(self, run: str) -> list[RankStart]:
        """Return the starts of a run's ranks by what its script noted; none without notes or an answer."""
        if not self._cluster.logs:
            return []
        try:
            return rank_starts(self._queue.answer, self._log(run))
        except EngineUnreachable as error:
            _log.warning("the starts of %s inside its jobs are not read: %s", run, error)
            return []

    def logs(self, run: str, rank: int | None = None, start: int | None = None) -> str:
        """See `Launcher.logs`."""
        return run_text(self._queue.answer, self._log(run), rank, start)

    def log_part(self, run: str, begin: int | None, end: int | None = None) -> LogPart:
        """See `Launcher.log_part`."""
        return log_part(self._queue.answer, self._log(run), begin, end)

    def log_range(self, run: str, start: int | None = None) -> tuple[int, int | None]:
        """See `Launcher.log_range`."""
        if start is None:
            return newest_part(self._queue.answer, self._log(run))
        return start_part(self._queue.answer, self._log(run), start)

    def label(self, run: str, rank: int) -> int | None:
        """See `Launcher.label`: srun names every rank."""
        return rank

    def missing_log(self, run: str) -> MissingLog | None:
        """See `Launcher.missing_log`."""
        return missing_log(self._queue.answer, self._log(run), "logs")

    def _jobs(self, run: str) -> list[QueuedJob]:
        """Return the jobs of a run that wait or run, the oldest first."""
        jobs = list_jobs(self._queue.answer, self._name(run))
        return [job for job in jobs if job.state in WAITING | RUNNING]

    def _starts(self, names: Sequence[str]) -> list[AccountedJob]:
        """Return the starts of jobs by the accounting; none on a cluster without."""
        try:
            return [
                start
                for group in command_groups(names)
                for start in account_jobs(self._queue.answer, name=",".join(group))
            ]
        except EngineUnreachable:
            return []

    def _release(self, jobs: Sequence[QueuedJob]) -> bool:
        """Let jobs wait again that Slurm holds for ever; return False if only an operator may."""
        return self._queue.release([job.job_id for job in jobs if job.reason in HELD])

    def _without_ranks(self, run: str) -> str:
        """Return since when srun begins no rank of a run, in words; "" if it does, by what the script wrote."""
        if not self._cluster.logs:
            return ""
        times = parse_starts(spans_text(self._queue.answer, self._log(run)).splitlines())
        since_us, count = without_ranks(times)
        if not count:
            return ""
        at = clock(since_us / 1e6, time.time())
        starts = "this start"
        if count != 1:
            starts = f"{count} starts"
        return f"srun has started no rank since {at}, in {starts}: see penstock train logs {run}"

    def _name(self, run: str) -> str:
        return f"pk-{hashlib.sha256(self._record.encode()).hexdigest()[:12]}-{run}"

    def _log(self, run: str) -> str:
        if not self._cluster.logs:
            raise InvalidCluster(
                "logs is missing in the cluster's file: a folder that nodes and login node share, for what runs write"
            )
        return f"{self._cluster.logs}/{self._name(run)}.txt"

    def _sbatch(self, spec: RunSpec, *more: str) -> str:
        """Return sbatch's answer. Raises: InvalidSpec in Slurm's words if it refuses; EngineUnreachable."""
        try:
            return self._queue.submit(self._script(spec), [*more, *self._options(spec)])
        except InvalidCluster as error:
            raise InvalidSpec(f"{spec.run}: {error}") from error

    def _script(self, spec: RunSpec) -> str:
        """Return the script; its places are whole URLs, because a node has a folder of its own."""
        spec = replace(spec, record=self._record, checkpoints=Root(spec.checkpoints or spec.record).url)
        settings = NodeSettings(
            environment=self._cluster.environment,
            python=self._cluster.node_python(sys.executable),
            cpus=self._cluster.cpus,
            log=self._log(spec.run),
        )
        return batch_script(spec, settings, self._name(spec.run))

    def _options(self, spec: RunSpec) -> list[str]:
        """Return sbatch's options. Raises: InvalidSpec; InvalidCluster."""
        cluster = self._cluster
        if spec.priority and spec.priority not in cluster.priorities:
            raise InvalidSpec(
                f"{spec.run}: priority = {spec.priority!r}; accepted: the names of [priorities] in the cluster's file, "
                f"{', '.join(cluster.priorities) or 'which has none'}",
                what="priority",
                where=spec.run,
                given=spec.priority,
                accepted=list(cluster.priorities),
            )
        gpus = "gpu:"
        if cluster.slot.gpu_type:
            gpus = f"gpu:{cluster.slot.gpu_type}:"
        options = {
            "job-name": self._name(spec.run),
            "export": "NONE",  # the submitter's variables stay out of Slurm
            "output": self._log(spec.run),
            # One file for all starts of the run; Slurm would cut it at each.
            "open-mode": "append",
            "dependency": "singleton",
            "signal": f"USR1@{spec.grace_s}",  # without `B:`, so that it reaches every rank
            "nodes": spec.nodes,
            # No --ntasks-per-node: a requeued job of --nodes=2-4 would wait for as many nodes as it had.
            "cpus-per-task": str(spec.ranks_per_node * cluster.cpus),
            "mem": mebibytes(spec.ranks_per_node * cluster.memory_bytes),
            "tmp": mebibytes(cluster.scratch_bytes),
            "gres": f"{gpus}{spec.gpus_per_node}" if spec.gpus_per_node else "",
            "time": f"0:{spec.walltime_s}" if spec.walltime_s else "",
            "partition": cluster.queue,
            "account": cluster.account,
            "qos": cluster.priorities.get(spec.priority, ""),
        }
        comment = f"{_FILE}{spec.digest}"
        for option in cluster.train.options:
            if option.startswith("--comment="):
                comment += f" {option.removeprefix('--comment=')}"
        return [
            "--requeue",
            *(f"--{key}={value}" for key, value in options.items() if value),
            *cluster.train.options,
            f"--comment={comment}",  # the last one counts
        ]


_FILE = "penstock-file:"
"""Word of a job's comment before the digest of the run's file that it has."""


def _job_file(job: QueuedJob) -> str:
    """Return the digest of the file that a job has; "" for a job of an earlier release."""
    word = job.comment.partition(" ")[0]
    if word.startswith(_FILE):
        return word.removeprefix(_FILE)
    return ""


def _status(jobs: Sequence[QueuedJob], starts: list[AccountedJob]) -> RunStatus:
    """Return how a run stands. jobs: of squeue, the oldest first. starts: of sacct, if squeue lists none."""
    for job in jobs:
        if job.state in RUNNING:
            return RunStatus(state="running", place=_place(job), is_ending=job.state == "COMPLETING")
    for job in jobs:
        if job.state in WAITING:
            return RunStatus(state="waiting", place=_place(job), reason=f"{job.reason}{plain(job.reason)}")
    if jobs:
        return RunStatus(state="ended", place=f"{_place(jobs[-1])}, {jobs[-1].state}")
    return RunStatus(state="ended" if starts else "unknown", place=_end_location(starts))


def start_spans(starts: Iterable[AccountedJob], ranks: Sequence[RankStart] = ()) -> list[Span]:
    """Return the times of the starts by the accounting, without jobs that never started.

    ranks: Starts of the ranks by the script's notes.
    """
    spans = list[Span]()
    for start in starts:
        begun_us = start.begun_us
        if begun_us is None:
            continue
        ended_us = LIMIT if start.ended_us is None else start.ended_us
        own = tuple(one for one in ranks if begun_us <= one.begun_us <= ended_us)
        spans.append(
            Span(
                begun_us=begun_us,
                ended_us=start.ended_us,
                nodes=start.nodes,
                state=start.state,
                node_names=start.node_names,
                starts=own,
            )
        )
    return spans


def _place(job: QueuedJob) -> str:
    return f"Slurm job {job.job_id} in partition {job.partition}"


def _end_location(starts: list[AccountedJob]) -> str:
    if starts:
        return f"Slurm job {starts[-1].job_id}, {starts[-1].state}"
    return ""
