"""Why a Slurm job waits, in words: the limit or rule behind Slurm's reason, what ends next, which nodes are drained."""

import re
import time
from collections.abc import Iterable

from .slurm import WAITING, plain
from .slurm_limits import SlurmLimit, limit_behind
from .slurm_listing import Answer, QueuedJob, named_jobs, queued_jobs

_UNITS = {"cpu": "CPUs", "node": "nodes", "mem": "MiB of memory", "gres/gpu": "GPUs"}
_FULL = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes_required_for_job_are_DOWN", "BadConstraints")
"""Reasons that free nodes would end."""


def why_waiting(answer: Answer, job: QueuedJob, now_s: float | None = None) -> str:
    """Return why a job waits. Raises: EngineUnreachable.

    answer: Runs a command of Slurm and returns its output.
    now_s: UTC seconds; None for now.
    """
    now_s = time.time() if now_s is None else now_s
    limit = limit_behind(answer, job)
    sentences = [_limit_words(limit, job) if limit else _reason_words(answer, job, now_s)]
    running: list[QueuedJob] = []
    word = re.split(r"[, (]", job.reason)[0]
    if limit and limit.used is not None:
        running = queued_jobs(answer, "--states=RUNNING", *limit.filters)
        sentences.append(_next_end(running, limit.resource, now_s))
        sentences.append(_fitting(limit, job))
    elif word in _FULL:
        running = queued_jobs(answer, "--states=RUNNING", f"--partition={job.partition}")
        sentences.append(_next_end(running, "node", now_s))
        if job.start_s is not None and job.start_s > now_s:
            sentences.append(f"Slurm expects to begin it by {clock(job.start_s, now_s)}.")
        sentences.append(_idle(answer, job))
    waited = f"waits {_length(now_s - job.submitted_s)}: " if job.submitted_s else "waits: "
    lines = [waited + " ".join(filter(None, sentences)), _drained(answer, job)]
    return "\n".join(filter(None, lines))


def why_name_waits(answer: Answer, name: str) -> str:
    """Return why the oldest waiting job of a name waits; "" if none does. Raises: EngineUnreachable."""
    waiting = [job for job in named_jobs(answer, name) if job.state in WAITING]
    return why_waiting(answer, waiting[0]) if waiting else ""


def _limit_words(limit: SlurmLimit, job: QueuedJob) -> str:
    unit = _unit(limit.resource)
    if limit.used is None:
        bound = "at least" if limit.least else "at most"
        words = f"{limit.owner} lets a job ask for {bound} {limit.limit:,} of {unit}"
        return f"{words}, {limit.asked:,} are asked ({job.reason})."
    asked = f", {limit.asked:,} more {'is' if limit.asked == 1 else 'are'} asked" if limit.asked else ""
    return f"{limit.owner} uses {limit.used:,} of {limit.limit:,} {unit}{asked} ({job.reason})."


def _reason_words(answer: Answer, job: QueuedJob, now_s: float) -> str:
    """Return the words for a reason that is no limit of an account or QOS; Slurm's own for an unknown one."""
    reason = job.reason or "no reason yet"
    if reason == "Dependency":
        return f"it depends on other jobs, {job.dependency or 'unnamed'} (Dependency)."
    if reason == "BeginTime" and job.start_s is not None:
        return f"it begins at {clock(job.start_s, now_s)} at the earliest (BeginTime)."
    if reason in ("PartitionTimeLimit", "PartitionNodeLimit"):
        text = answer(["scontrol", "-o", "show", "partition", job.partition.partition(",")[0]])
        facts = dict(re.findall(r"(MaxTime|MaxNodes|MinNodes|TotalNodes)=(\S+)", text))
        if reason == "PartitionTimeLimit":
            return (
                f"partition {job.partition} allows {facts.get('MaxTime')}, {job.limit} are asked ({reason})."
            )
        bounds = f"{facts.get('MinNodes')} to {facts.get('MaxNodes')} nodes of {facts.get('TotalNodes')}"
        return f"partition {job.partition} allows {bounds}, {job.nodes} are asked ({reason})."
    return f"{reason}{plain(reason)}."


def _next_end(running: Iterable[QueuedJob], resource: str, now_s: float) -> str:
    """Return which running job ends first by its time limit."""
    ends = [
        (job.end_s, job)
        for job in running
        if job.end_s is not None and (resource == "jobs" or job.resources.get(resource))
    ]
    if not ends:
        return ""
    end_s, job = min(ends, key=lambda pair: pair[0])
    share = "" if resource == "jobs" else f" ({job.resources[resource]:,} {_unit(resource)})"
    return f"Next to end: job {job.job_id}{share}, by {clock(end_s, now_s)}."


def _fitting(limit: SlurmLimit, job: QueuedJob) -> str:
    """Return how many nodes the rest of a limit is enough for."""
    per_node = limit.asked // job.nodes
    if limit.resource == "jobs" or not per_node or limit.used is None:
        return ""
    nodes = max(0, limit.limit - limit.used) // per_node
    return f"{nodes} node{'' if nodes == 1 else 's'} would fit."


def _idle(answer: Answer, job: QueuedJob) -> str:
    lines = answer(
        ["sinfo", "--noheader", "--states=idle", f"--partition={job.partition}", "--format=%D %N"]
    ).split()
    count, names = (int(lines[0]), lines[1]) if len(lines) > 1 else (0, "")
    return f"{count} of the {job.nodes} nodes are idle: {names}." if count else "No node is idle."


def _drained(answer: Answer, job: QueuedJob) -> str:
    """Return a sentence on the nodes of the partition that are out of service: the reason, and who gave it."""
    command = ["sinfo", "-R", "--noheader", f"--partition={job.partition}", "--format=%N|%u|%E"]
    nodes = []
    for line in answer(command).splitlines():
        name, _, rest = line.strip().partition("|")
        user, _, reason = rest.partition("|")
        nodes.append(f"{name} ({reason}, by {user})")
    return f"Out of service: {'; '.join(nodes)}" if nodes else ""


def _unit(resource: str) -> str:
    return _UNITS.get(resource, resource)


def clock(at_s: float, now_s: float) -> str:
    at, now = time.gmtime(at_s), time.gmtime(now_s)
    return time.strftime("%H:%M UTC" if at[:3] == now[:3] else "%Y-%m-%d %H:%M UTC", at)


def _length(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{int(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
