"""Jobs as `squeue` lists them, with what they ask for, and the time that Slurm gives a job to stop."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loader.errors import EngineUnreachable

from .slurm_rows import Answer, PrintedRows, new_mark, split_rows

_WIDTHS = {
    "JobID": 20,
    "State": 20,
    "Account": 100,
    "UserName": 100,
    "UserID": 20,
    "QOS": 100,
    "Partition": 200,
    "NumNodes": 20,
    "tres-alloc": 400,
    "TimeLimit": 24,
    "StartTime": 24,
    "EndTime": 24,
    "SubmitTime": 24,
    "Dependency": 200,
    "Reason": 400,
}
"""Column of squeue -> characters at which it is cut."""
NAMES_BYTES = 60_000
"""Most bytes of names in one command: Linux takes 128 KiB in a word."""
_TRES = re.compile(r"([^=,]+)=([0-9.]+)([KMGTP]?)")
_SCALE = {"": 1.0, "K": 2**-10, "M": 1.0, "G": 2**10, "T": 2**20, "P": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that waits, runs, or ended a moment ago."""

    job_id: str
    """Slurm's id."""
    state: str
    """Slurm's word, such as PENDING."""
    account: str = ""
    """Account that is billed."""
    user: str = ""
    """User's login name."""
    user_id: str = ""
    """User's number."""
    qos: str = ""
    """Quality of service."""
    partition: str = ""
    """Partition, or several with commas while it waits."""
    nodes: int = 1
    """Nodes that it has or asks for: the fewest of a range."""
    resources: Mapping[str, int]
    """Slurm's name of a resource -> what it has or asks for; "mem" in MiB."""
    limit: str = ""
    """Time limit as Slurm prints it: 1-00:00:00, or UNLIMITED."""
    start_s: int | None = None
    """UTC seconds at which it begins, perhaps expected; None: unknown."""
    end_s: int | None = None
    """UTC seconds at which its time limit ends; None: unknown or unlimited."""
    submitted_s: int | None = None
    """UTC seconds of its submission, or of its requeue."""
    dependency: str = ""
    """Jobs that it waits for, in Slurm's words."""
    reason: str = ""
    """Slurm's reason to wait."""
    name: str = ""
    """Its name, if jobs were asked for by name: a foreign name may break squeue's lines."""
    comment: str = ""
    """Its comment, if jobs were asked for by name."""


def list_queue(answer: Answer, *filters: str, columns: Mapping[str, int] = _WIDTHS) -> list[QueuedJob]:
    """Return the jobs of all users and states that match squeue's options, oldest first. Raises: EngineUnreachable."""
    mark = new_mark()
    form = ",".join(f"{name}:{width}{mark}" for name, width in columns.items())
    command = ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--all", f"--Format={form}", *filters]
    rows = split_rows(answer(command), mark, len(columns))
    return sorted(_jobs(rows, columns), key=lambda job: int(job.job_id))


def list_jobs(answer: Answer, *names: str) -> list[QueuedJob]:
    """Return the jobs of these names in any state; Slurm forgets a job MinJobAge (300 s) after its end."""
    columns = {**_WIDTHS, "Name": 300, "Comment": 400}
    jobs = list[QueuedJob]()
    for group in command_groups(names):
        jobs += list_queue(answer, "--states=all", f"--name={','.join(group)}", columns=columns)
    return jobs


def command_groups(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield names in groups that fit into a command."""
    group = list[str]()
    n_bytes = 0
    for name in names:
        if group and n_bytes + len(name) > NAMES_BYTES:
            yield group
            group = []
            n_bytes = 0
        group.append(name)
        n_bytes += len(name) + 1
    if group:
        yield group


def _jobs(rows: PrintedRows, columns: Mapping[str, int]) -> Iterator[QueuedJob]:
    """Yield the jobs. Raises: EngineUnreachable for a row that is none: it may be any job, so all are unknown."""
    for row in rows.whole:
        if not row[0].isdigit():
            raise EngineUnreachable(
                f"squeue prints {' | '.join(row)[:200]!r}, which is not a job", what="squeue", given=row
            )
        yield _job(dict(zip(columns, row, strict=True)))
    if rows.rest:
        raise EngineUnreachable(
            f"squeue prints {' | '.join(rows.rest)[:200]!r}, which is not a job",
            what="squeue",
            given=rows.rest,
        )


def _job(values: Mapping[str, str]) -> QueuedJob:
    """Return a job of `squeue`. values: name of a field of `squeue --Format` -> its text."""
    least_nodes = re.match(r"[0-9]+", values["NumNodes"])  # a waiting job may ask for 2-4
    return QueuedJob(
        job_id=values["JobID"],
        state=values["State"],
        account=values["Account"],
        user=values["UserName"],
        user_id=values["UserID"],
        qos=values["QOS"],
        partition=values["Partition"],
        nodes=int(least_nodes[0]) if least_nodes else 1,
        resources=parse_resources(values["tres-alloc"]),
        limit=values["TimeLimit"],
        start_s=_seconds(values["StartTime"]),
        end_s=_seconds(values["EndTime"]),
        submitted_s=_seconds(values["SubmitTime"]),
        dependency="" if values["Dependency"] == "(null)" else values["Dependency"],
        reason="" if values["Reason"] == "None" else values["Reason"],
        name=values.get("Name", ""),
        comment=values.get("Comment", ""),
    )


def parse_resources(text: str) -> dict[str, int]:
    """Return resource -> number in a list such as `cpu=8,mem=62.50G,gres/gpu=2`; memory in MiB."""
    return {name: int(float(number) * _SCALE[scale]) for name, number, scale in _TRES.findall(text)}


def _seconds(text: str) -> int | None:
    if text.isdigit():
        return int(text)
    return None


def cluster_name(answer: Answer) -> str:
    """Return the name of the cluster, "unknown" if its configuration lacks it. Raises: EngineUnreachable."""
    return _config(answer).get("ClusterName", "unknown")


def _config(answer: Answer) -> dict[str, str]:
    return dict(re.findall(r"(?m)^(\w+) *= (.*?) *$", answer(["scontrol", "show", "config"])))


def preemption_words(answer: Answer, job: QueuedJob, grace_s: int) -> str:
    """Return what a preemption leaves a job, in words; "" if nothing preempts it. grace_s: s that it needs.

    Reads PreemptType, PreemptMode and KillWait of the cluster, GraceTime and PreemptMode of the QOS or partition.
    """
    config = _config(answer)
    kill_s = int(re.match(r"[0-9]*", config.get("KillWait", ""))[0] or 30)  # type: ignore[index]
    if config.get("PreemptType") == "preempt/qos":
        where = f"QOS {job.qos}"
        time, mode = _qos(answer, job.qos)
    elif config.get("PreemptType") == "preempt/partition_prio":
        text = answer(["scontrol", "-o", "show", "partition", job.partition.partition(",")[0]])
        facts = dict(re.findall(r"(GraceTime|PreemptMode)=(\S+)", text))
        where = f"partition {job.partition}"
        time = facts.get("GraceTime", "0")
        mode = facts.get("PreemptMode", "")
    else:
        return ""
    # `cluster` stands for the cluster's own mode.
    modes = (mode if mode and mode.lower() != "cluster" else config.get("PreemptMode", "")).upper()
    if modes == "OFF":
        return ""
    if "SUSPEND" in modes or "GANG" in modes:
        return f"a preemption suspends it ({where}), and lets it save nothing"
    given_s = clock_seconds(time)
    text = f"a preemption leaves {given_s + kill_s} s (GraceTime {given_s} of {where}, KillWait {kill_s})"
    if given_s + kill_s >= grace_s:
        return text
    return f"{text}: less than grace_s = {grace_s}"


def _qos(answer: Answer, name: str) -> tuple[str, str]:
    """Return GraceTime and PreemptMode of a QOS; OFF if no other QOS preempts it."""
    text = answer(["sacctmgr", "-nP", "show", "qos", "format=Name,GraceTime,PreemptMode,Preempt"])
    every = {line.split("|")[0]: line.split("|")[1:] for line in text.splitlines() if line.count("|") == 3}
    time, mode, _ = every.get(name, ("", "", ""))
    is_preempted = any(name in preempts.split(",") for *_, preempts in every.values())
    return time, mode if is_preempted else "OFF"


def clock_seconds(text: str) -> int:
    """Return the seconds of `1-02:03:04`, `00:00:40` or `40`."""
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = total * 60 + int(part or 0)
    return total + int(days or 0) * 86_400
