"""Why a Slurm job waits, in words: the limit or rule behind Slurm's reason, what ends next, which nodes are drained.

A reason such as AssocGrpGRES names only the kind of limit. The first limit in `scontrol show assoc_mgr` that the job
would exceed is chosen, from the user's association up to the root, or of the job's and partition's QOS.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...text import clean
from .slurm import WAITING, plain
from .slurm_listing import QueuedJob, clock_seconds, list_jobs, list_queue
from .slurm_rows import Answer, parse_rows

_REASON = re.compile(
    r"(?P<level>Assoc|QOS)?(?P<kind>Grp|Max|Min)(?P<what>[A-Za-z]+?)"
    r"(?P<minutes>RunMinutes|RunMins|Minutes|Mins)?(?:Per(?P<per>User|Account|Acct|Job|Node))?"
    r"(?P<end>Limit|NotSatisfied)?"
)
_RESOURCES = {
    "cpu": "cpu",
    "node": "node",
    "mem": "mem",
    "memory": "mem",
    "gres": "gres/",
    "billing": "billing",
    "energy": "energy",
    "license": "license/",
    "bb": "bb/",
}
"""Slurm's word in a reason, in small letters -> name of the resource, or its beginning."""
_COUNTS = {"jobs": "Jobs", "submitjobs": "SubmitJobs", "submitjob": "SubmitJobs"}
_SUFFIXES = {"User": "PU", "Account": "PA", "Acct": "PA", "Job": "PJ", "Node": "PN", None: ""}
"""Slurm's word after "Per" in a reason -> end of the limit's name."""
_VALUE = re.compile(r"([^=,]+)=([^=,(]*)(?:\(([0-9.]+)\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLimit:
    """A Slurm limit, and the job that it holds back."""

    owner: str
    """Whose limit it is: "account vision", "QOS high"."""
    resource: str
    """Slurm's name of the resource, "jobs", or such as "cpu minutes"."""
    limit: int
    """Most that the owner may use; for a job: most, or least, that it may ask for."""
    used: int | None
    """Use now; None for a limit of each job."""
    asked: int
    """Number that the job asks for; 0 if it is unknown."""
    least: bool = False
    """True if a job must ask for at least so much."""
    filters: tuple[str, ...] = ()
    """Options of squeue for the jobs that count."""


def find_limit(answer: Answer, job: QueuedJob) -> SlurmLimit | None:
    """Return the limit that holds a waiting job back; None if its reason names none. Raises: EngineUnreachable."""
    match = _REASON.fullmatch(job.reason)
    if match is None:
        return None
    if match["level"] == "Assoc":
        limits = list(_of_associations(answer, job, match))
    else:  # "MaxGRESPerAccount" of old releases is a QOS's too
        limits = list(_of_qos(answer, job, match))
    for limit in limits:
        if limit.used is None or limit.used + limit.asked > limit.limit:
            return limit
    if limits:
        return limits[0]
    return None


def _of_associations(answer: Answer, job: QueuedJob, match: re.Match[str]) -> Iterator[SlurmLimit]:
    """Yield limits from the user's association up to the root."""
    lines = answer(["scontrol", "-o", "show", "assoc_mgr", "flags=assoc"]).splitlines()
    rows = [_fields(line) for line in lines if line.startswith("ClusterName=")]
    account_rows = [row for row in rows if not row["UserName"]]
    parents = {row["Account"]: row.get("ParentAccount", "").partition("(")[0] for row in account_rows}
    for row in rows:
        user = row["UserName"].partition("(")[0]
        if row["Account"] == job.account and user == job.user:
            owner = f"user {job.user} in account {job.account}"
            filters = (f"--user={job.user}", f"--account={job.account}")
            yield from _limits(row, job, match, owner, filters)
    account = job.account
    while account in parents:
        for row in account_rows:
            if row["Account"] == account:
                accounts = ",".join(_with_descendants(account, parents))
                yield from _limits(row, job, match, f"account {account}", (f"--account={accounts}",))
        account = parents[account]


def _with_descendants(account: str, parents: Mapping[str, str]) -> list[str]:
    names = [account]
    for name in names:  # the loop reaches the names that it adds
        names += [child for child, parent in parents.items() if parent == name]
    return names


def _of_qos(answer: Answer, job: QueuedJob, match: re.Match[str]) -> Iterator[SlurmLimit]:
    """Yield limits of the job's QOS, and of its partition's."""
    partition = answer(["scontrol", "-o", "show", "partition", job.partition.partition(",")[0]])
    names = [job.qos]
    partition_qos = re.search(r" QoS=(\S+)", partition)
    if partition_qos and partition_qos[1] != "N/A":
        names.append(partition_qos[1])
    text = answer(["scontrol", "-o", "show", "assoc_mgr", f"qos={','.join(names)}", "flags=qos"])
    for line in text.splitlines():
        name = re.match(r"QOS=(.*?)\([0-9]+\) ", line)
        if name is None or name[1] not in names:
            continue
        owner = f"QOS {name[1]}"
        qos_filter = f"--qos={name[1]}"
        head, _, rest = line.partition(" Account Limits")
        account_text, _, user_text = rest.partition(" User Limits")
        if match["per"] == "User":
            users = _blocks(user_text)
            # Releases differ in how they write a user.
            for key in (job.user_id, job.user, f"{job.user}({job.user_id})"):
                if key in users:
                    filters = (qos_filter, f"--user={job.user}")
                    yield from _limits(users[key], job, match, f"user {job.user} in {owner}", filters)
        elif match["per"] in ("Account", "Acct"):
            accounts = _blocks(account_text)
            if job.account in accounts:
                filters = (qos_filter, f"--account={job.account}")
                account_owner = f"account {job.account} in {owner}"
                yield from _limits(accounts[job.account], job, match, account_owner, filters)
        else:
            yield from _limits(_fields(head), job, match, owner, (qos_filter,))


def _blocks(text: str) -> dict[str, dict[str, str]]:
    """Return name -> fields of `name={field=value ...}`."""
    return {name: _fields(body) for name, body in re.findall(r"(\S+?)=\{([^}]*)\}", text)}


def _fields(line: str) -> dict[str, str]:
    fields = {}
    for word in line.split():
        name, _, value = word.partition("=")
        fields[name] = value
    return fields


def _limits(
    row: Mapping[str, str], job: QueuedJob, match: re.Match[str], owner: str, filters: tuple[str, ...]
) -> Iterator[SlurmLimit]:
    """Yield the limits of a row that a reason may mean."""
    what = match["what"].lower()
    kind = match["kind"]
    suffix = _SUFFIXES[match["per"]]
    if what in _COUNTS:
        limit, used = _value(row.get(f"{kind}{_COUNTS[what]}{suffix}", ""))
        if limit is not None:
            yield SlurmLimit(owner=owner, resource="jobs", limit=limit, used=used, asked=1, filters=filters)
        return
    minutes = match["minutes"] or ""
    column = f"{kind}TRES"
    if minutes:
        column += "RunMins" if minutes.startswith("Run") else "Mins"
    if kind == "Min":
        suffix = suffix or "PJ"
    for name, text, used_text in _VALUE.findall(row.get(column + suffix, "")):
        limit, _ = _value(text)
        if limit is None or not _is_meant(name, what):
            continue
        used = None
        if used_text:
            used = int(float(used_text))
        if minutes:
            resource = f"{name} minutes"
            asked = 0
        else:
            resource = name
            asked = job.resources.get(name, 0)
        yield SlurmLimit(
            owner=owner,
            resource=resource,
            limit=limit,
            used=used,
            asked=asked,
            least=kind == "Min",
            filters=filters,
        )


def _is_meant(resource: str, what: str) -> bool:
    """Return whether a reason's word means a resource: gres means gres/gpu."""
    begin = _RESOURCES.get(what, "?")
    if begin.endswith("/"):
        return resource.startswith(begin)
    return resource == begin


def _value(text: str) -> tuple[int | None, int | None]:
    """Return limit and use of `64(40)`; None for a limit that is not set."""
    match = re.fullmatch(r"([0-9]+)[A-Z]?(?:\(([0-9]+)\))?", text)
    if match is None:
        return None, None
    used = None
    if match[2]:
        used = int(match[2])
    return int(match[1]), used


_UNITS = {"cpu": "CPUs", "node": "nodes", "mem": "MiB of memory", "gres/gpu": "GPUs"}
_FULL = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes", "BadConstraints")
"""First words of the reasons that free nodes would end; "Nodes": "Nodes required for job are DOWN, ..."."""
_OF_PARTITION = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "MaxMemPerLimit")
"""Reasons that a setting of the partition would end."""
_CLOCK = re.compile(r"(?:[0-9]+-)?[0-9]+(?::[0-9]+)*")
_REASON_LENGTH = 200
"""Most characters that are shown of the reason why a node is out of service."""
UNLIMITED = "UNLIMITED"
"""Slurm's time limit of a job without one."""
_IDLE = ("idle", "idle~")
"""Slurm's words for nodes that a job may have now; the second one is powered down until a job needs it."""


def why_waiting(answer: Answer, job: QueuedJob, now_s: float | None = None) -> str:
    """Return why a job waits.

    answer: returns the output of a command. now_s: UTC seconds; None for now. Raises: EngineUnreachable.
    """
    now_s = time.time() if now_s is None else now_s
    limit = find_limit(answer, job)
    sentences = [_limit_words(limit, job) if limit else _reason_words(answer, job, now_s)]
    running: list[QueuedJob] = []
    word = re.split(r"[, (]", job.reason)[0]
    if limit and limit.used is not None:
        running = list_queue(answer, "--states=RUNNING", *limit.filters)
        sentences.append(_next_end(running, limit.resource, now_s))
        sentences.append(_fitting(limit, job))
    elif word in _FULL:
        running = list_queue(answer, "--states=RUNNING", f"--partition={job.partition}")
        sentences.append(_next_end(running, "node", now_s))
        sentences.append(_start_estimate(job, running, now_s))
        sentences.append(_idle(answer, job))
    begin = "waits"
    if job.submitted_s:
        begin += f" {_length(now_s - job.submitted_s)}"
    text = " ".join(filter(None, sentences))
    lines = [f"{begin}: {text}", _drain_reason(answer, job)]
    return "\n".join(filter(None, lines))


def why_name_waits(answer: Answer, name: str) -> str:
    """Return why the oldest waiting job of a name waits; "" if none does. Raises: EngineUnreachable."""
    waiting = [job for job in list_jobs(answer, name) if job.state in WAITING]
    return why_waiting(answer, waiting[0]) if waiting else ""


def _limit_words(limit: SlurmLimit, job: QueuedJob) -> str:
    """Return a sentence on the limit that a job would exceed: what is used of it, or what a job may ask for."""
    unit = _unit(limit.resource)
    if limit.used is None:
        bound = "at least" if limit.least else "at most"
        words = f"{limit.owner} lets a job ask for {bound} {limit.limit:,} of {unit}"
        return f"{words}, {limit.asked:,} are asked ({job.reason})."
    words = f"{limit.owner} uses {limit.used:,} of {limit.limit:,} {unit}"
    if limit.asked:
        verb = "is" if limit.asked == 1 else "are"
        words += f", {limit.asked:,} more {verb} asked"
    return f"{words} ({job.reason})."


def _reason_words(answer: Answer, job: QueuedJob, now_s: float) -> str:
    """Return a sentence on why a job waits that no limit explains."""
    reason = job.reason or "no reason yet"
    if reason == "Dependency":
        return f"it depends on other jobs, {job.dependency or 'unnamed'} (Dependency)."
    if reason == "BeginTime" and job.start_s is not None:
        return f"it begins at {clock(job.start_s, now_s)} at the earliest (BeginTime)."
    if reason in _OF_PARTITION:
        return _partition_words(answer, job)
    return f"{reason}{plain(reason)}."


def _partition_words(answer: Answer, job: QueuedJob) -> str:
    """Return the limits of the job's partition that it breaks; all of them if none explains Slurm's reason."""
    name = job.partition.partition(",")[0]
    text = answer(["scontrol", "-o", "show", "partition", name])
    facts = dict(re.findall(r"(\w+)=(\S+)", text))
    limits = list(_partition_limits(facts, job))
    broken = [words for words, is_broken in limits if is_broken]
    if broken:
        return f"partition {name} allows {'; and '.join(broken)} ({job.reason})."
    allowed = "; ".join(words for words, _ in limits)
    return f"{job.reason}{plain(job.reason)}: partition {name} allows {allowed}."


def _partition_limits(facts: Mapping[str, str], job: QueuedJob) -> Iterator[tuple[str, bool]]:
    """Yield each limit of a partition beside what the job asks for, and whether the job breaks it."""
    least, _ = _value(facts.get("MinNodes", ""))
    most, _ = _value(facts.get("MaxNodes", ""))
    total, _ = _value(facts.get("TotalNodes", ""))
    bounds = f"{facts.get('MinNodes')} to {facts.get('MaxNodes')} nodes of {facts.get('TotalNodes')}"
    upper_limits = [limit for limit in (most, total) if limit is not None]
    is_outside = job.nodes < (least or 0) or any(job.nodes > limit for limit in upper_limits)
    yield f"{bounds}, {job.nodes} are asked", is_outside
    yield f"{facts.get('MaxTime')}, {job.limit} are asked", _is_longer(job.limit, facts.get("MaxTime", ""))
    for resource, key, unit in (
        ("mem", "MaxMemPerNode", "MiB of memory on a node"),
        ("cpu", "MaxCPUsPerNode", "CPUs on a node"),
    ):
        asked = -(-job.resources.get(resource, 0) // job.nodes)
        limit, _ = _value(facts.get(key, ""))
        if limit is not None and asked:
            yield f"{limit:,} {unit}, {asked:,} are asked", asked > limit
    if facts.get("State", "UP") != "UP":
        yield f"no job: its state is {facts['State']}", True
    for who, value in (("Accounts", job.account), ("Qos", job.qos)):
        allowed = facts.get(f"Allow{who}", "ALL")
        denied = facts.get(f"Deny{who}", "")
        if allowed != "ALL":
            yield f"{who} {allowed}, it has {value}", value not in allowed.split(",")
        elif denied:
            yield f"no {who} {denied}, it has {value}", value in denied.split(",")


def _is_longer(asked: str, limit: str) -> bool:
    """Return whether a time limit is above another one, both in Slurm's words."""
    if not _CLOCK.fullmatch(limit):
        return False
    if asked == UNLIMITED:
        return True
    return _CLOCK.fullmatch(asked) is not None and clock_seconds(asked) > clock_seconds(limit)


def _next_end(running: Iterable[QueuedJob], resource: str, now_s: float) -> str:
    """Return a sentence on which running job ends first by its time limit; "" if none has the resource.

    resource: as Slurm names it, or "jobs" for a limit on their number.
    """
    holders = [job for job in running if resource == "jobs" or job.resources.get(resource)]
    unlimited = [job for job in holders if job.limit == UNLIMITED]
    # Slurm prints an end a year away for a job without a limit.
    ends = [(job.end_s, job) for job in holders if job.end_s is not None and job.limit != UNLIMITED]
    if ends:
        end_s, first = min(ends, key=lambda pair: pair[0])
        return f"Next to end: job {_with_share(first, resource)}, by {clock(end_s, now_s)}."
    if not unlimited:
        return ""
    words = f"job {_with_share(unlimited[0], resource)} has no time limit"
    others = len(unlimited) - 1
    if others:
        words += ", nor has 1 other" if others == 1 else f", nor have {others} others"
    return f"No end is known: {words}."


def _with_share(job: QueuedJob, resource: str) -> str:
    """Return a job's number, and what it has of a resource."""
    if resource == "jobs":
        return job.job_id
    return f"{job.job_id} ({job.resources[resource]:,} {_unit(resource)})"


def _start_estimate(job: QueuedJob, running: Iterable[QueuedJob], now_s: float) -> str:
    """Return when Slurm expects to begin a job; "" if that waits for the end of a job without a time limit."""
    if job.start_s is None or job.start_s <= now_s:
        return ""
    for other in running:
        if other.limit == UNLIMITED and other.end_s is not None and job.start_s >= other.end_s:
            return ""
    return f"Slurm expects to begin it by {clock(job.start_s, now_s)}."


def _fitting(limit: SlurmLimit, job: QueuedJob) -> str:
    """Return a sentence on how many nodes the rest of a limit is enough for; "" if that is unknown."""
    per_node = limit.asked // job.nodes
    if limit.resource == "jobs" or not per_node or limit.used is None:
        return ""
    nodes = max(0, limit.limit - limit.used) // per_node
    unit = "node" if nodes == 1 else "nodes"
    return f"{nodes} {unit} would fit."


def _idle(answer: Answer, job: QueuedJob) -> str:
    """Return a sentence on the idle nodes of a job's partition."""
    # --states=idle lists drained nodes without a job, too: only the state itself differs.
    command = ["sinfo", "--noheader", "--states=idle", f"--partition={job.partition}"]
    rows = parse_rows(answer, command, ["%T", "%D", "%N"]).whole
    idle = [(int(count), names) for state, count, names in rows if state in _IDLE and count.isdigit()]
    total = sum(count for count, _ in idle)
    names = ",".join(names for _, names in idle)
    if not total:
        return "No node is idle."
    verb = "is" if total == 1 else "are"
    return f"{total} of the {job.nodes} nodes {verb} idle: {names}."


def _drain_reason(answer: Answer, job: QueuedJob) -> str:
    """Return a sentence on the drained nodes of a job's partition, with reasons; "" if no node is drained."""
    command = ["sinfo", "-R", "--noheader", f"--partition={job.partition}"]
    rows = parse_rows(answer, command, ["%N", "%u", "%E"]).whole
    nodes = [f"{name} ({clean(reason, _REASON_LENGTH)}, by {user})" for name, user, reason in rows]
    if not nodes:
        return ""
    return f"Out of service: {'; '.join(nodes)}"


def _unit(resource: str) -> str:
    return _UNITS.get(resource, resource)


def clock(at_s: float, now_s: float) -> str:
    """Return a time as text, without the day if that is today. Both in seconds since 1970."""
    at = time.gmtime(at_s)
    is_today = at[:3] == time.gmtime(now_s)[:3]
    form = "%H:%M UTC" if is_today else "%Y-%m-%d %H:%M UTC"
    return time.strftime(form, at)


def _length(seconds: float) -> str:
    """Return a duration as text, in the largest unit that suits it."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{int(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
