"""The limit behind a reason of Slurm such as AssocGrpGRES: whose it is, what is used of it, what is asked.

Slurm's reason names the kind of limit only. `scontrol show assoc_mgr` lists all limits with their use. The first one
that the job would exceed is chosen: from the user's association up to the root, or of the job's and partition's QOS.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .slurm_listing import Answer, QueuedJob

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
"""Slurm's word in a reason, in small letters -> name of the resource, or how its names begin."""
_COUNTS = {"jobs": "Jobs", "submitjobs": "SubmitJobs", "submitjob": "SubmitJobs"}
_VALUE = re.compile(r"([^=,]+)=([^=,(]*)(?:\(([0-9.]+)\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLimit:
    """A Slurm limit, and the job that it holds back."""

    owner: str
    """Whose limit it is: "account vision", "QOS high"."""
    resource: str
    """Slurm's name of the resource, "jobs", or such as "cpu minutes"."""
    limit: int
    """Most that the owner may use; for a job: most, or least, that a job may ask for."""
    used: int | None
    """Use now; None for a limit of each job."""
    asked: int
    """Number that the job asks for; 0 if it is unknown."""
    least: bool = False
    """True if a job must ask for at least so much."""
    filters: tuple[str, ...] = ()
    """Options of squeue for the jobs that count."""


def limit_behind(answer: Answer, job: QueuedJob) -> SlurmLimit | None:
    """Return the limit that holds a waiting job back; None if its reason names none. Raises: EngineUnreachable."""
    match = _REASON.fullmatch(job.reason)
    if match is None:
        return None
    if match["level"] == "Assoc":
        limits = list(_of_associations(answer, job, match))
    else:  # "MaxGRESPerAccount" of old releases is a QOS's too
        limits = list(_of_qos(answer, job, match))
    exceeded = [one for one in limits if one.used is None or one.used + one.asked > one.limit]
    return next(iter(exceeded or limits), None)


def _of_associations(answer: Answer, job: QueuedJob, match: re.Match[str]) -> Iterator[SlurmLimit]:
    """Yield limits of the user's association, of its account, and so on up to the root."""
    lines = answer(["scontrol", "-o", "show", "assoc_mgr", "flags=assoc"]).splitlines()
    rows = [_fields(line) for line in lines if line.startswith("ClusterName=")]
    parents = {
        row["Account"]: row.get("ParentAccount", "").partition("(")[0] for row in rows if not row["UserName"]
    }
    for row in rows:
        if row["Account"] == job.account and row["UserName"].partition("(")[0] == job.user:
            owner = f"user {job.user} in account {job.account}"
            yield from _limits(row, job, match, owner, (f"--user={job.user}", f"--account={job.account}"))
    account = job.account
    while account in parents:
        for row in rows:
            if row["Account"] == account and not row["UserName"]:
                filters = (f"--account={','.join(_below(account, parents))}",)
                yield from _limits(row, job, match, f"account {account}", filters)
        account = parents[account]


def _below(account: str, parents: Mapping[str, str]) -> list[str]:
    """Return an account and all below it."""
    names = [account]
    for name in names:
        names += [child for child, parent in parents.items() if parent == name]
    return names


def _of_qos(answer: Answer, job: QueuedJob, match: re.Match[str]) -> Iterator[SlurmLimit]:
    """Yield limits of the job's QOS, and of its partition's."""
    partition = answer(["scontrol", "-o", "show", "partition", job.partition.partition(",")[0]])
    own = re.search(r" QoS=(\S+)", partition)
    names = [job.qos, *([own[1]] if own and own[1] != "N/A" else [])]
    text = answer(["scontrol", "-o", "show", "assoc_mgr", f"qos={','.join(names)}", "flags=qos"])
    for line in text.splitlines():
        name = re.match(r"QOS=(.*?)\([0-9]+\) ", line)
        if name is None or name[1] not in names:
            continue
        owner, filters = f"QOS {name[1]}", (f"--qos={name[1]}",)
        head, accounts, users = _sections(line)
        if match["per"] == "User":
            for key in (job.user_id, job.user, f"{job.user}({job.user_id})"):
                if key in users:
                    whose = f"user {job.user} in {owner}"
                    yield from _limits(users[key], job, match, whose, (*filters, f"--user={job.user}"))
        elif match["per"] in ("Account", "Acct"):
            if job.account in accounts:
                whose = f"account {job.account} in {owner}"
                yield from _limits(
                    accounts[job.account], job, match, whose, (*filters, f"--account={job.account}")
                )
        else:
            yield from _limits(head, job, match, owner, filters)


def _sections(line: str) -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Return the fields of a QOS, of each account in it, and of each user in it."""
    head, _, rest = line.partition(" Account Limits")
    accounts, _, users = rest.partition(" User Limits")
    blocks = [
        {name: _fields(body) for name, body in re.findall(r"(\S+?)=\{([^}]*)\}", text)}
        for text in (accounts, users)
    ]
    return _fields(head), blocks[0], blocks[1]


def _fields(line: str) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in line.split())}


def _limits(
    row: Mapping[str, str], job: QueuedJob, match: re.Match[str], owner: str, filters: tuple[str, ...]
) -> Iterator[SlurmLimit]:
    """Yield the limits of a row that a reason may mean."""
    what, kind, per = match["what"].lower(), match["kind"], match["per"]
    suffix = {"User": "PU", "Account": "PA", "Acct": "PA", "Job": "PJ", "Node": "PN", None: ""}[per]
    if what in _COUNTS:
        limit, used = _value(row.get(f"{kind}{_COUNTS[what]}{suffix}", ""))
        if limit is not None:
            yield SlurmLimit(owner=owner, resource="jobs", limit=limit, used=used, asked=1, filters=filters)
        return
    minutes = match["minutes"] or ""
    column = f"{kind}TRES{'RunMins' if minutes.startswith('Run') else 'Mins' if minutes else ''}"
    column += suffix or ("PJ" if kind == "Min" else "")
    begin = _RESOURCES.get(what, "?")
    for name, text, used_text in _VALUE.findall(row.get(column, "")):
        limit, _ = _value(text)
        if limit is None or not (name.startswith(begin) if begin.endswith("/") else name == begin):
            continue
        yield SlurmLimit(
            owner=owner,
            resource=f"{name} minutes" if minutes else name,
            limit=limit,
            used=int(float(used_text)) if used_text else None,
            asked=0 if minutes else job.resources.get(name, 0),
            least=kind == "Min",
            filters=filters,
        )


def _value(text: str) -> tuple[int | None, int | None]:
    """Return limit and use of `64(40)`; None for a limit that is not set."""
    match = re.fullmatch(r"([0-9]+)[A-Z]?(?:\(([0-9]+)\))?", text)
    return (int(match[1]), int(match[2]) if match[2] else None) if match else (None, None)
