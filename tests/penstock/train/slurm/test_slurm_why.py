"""Why jobs wait on real daemons: each reason is planted, and named with its limit, its users and its nodes."""

import re
from collections.abc import Iterator

import pytest

from penstock.compute.engines.slurm import SlurmQueue
from penstock.compute.engines.slurm_why import why_name_waits
from tests.servers.patience import until
from tests.servers.slurm import Slurm

pytestmark = pytest.mark.slurm
LIMITS = (
    "add account gpus grptres=gres/gpu=2",
    "add account lab",
    "add account few parent=lab",
    "add account deep parent=lab",
    "modify account lab set grpjobs=1",
    "add qos cpus grptres=cpu=1",
    "add qos pairs maxjobsperuser=1",
    "add qos wide maxtresperjob=node=1",
    "add user {user} account=gpus,few,deep qos=normal,cpus,pairs,wide",
    "modify user {user} set qos+=cpus,pairs,wide",
)
RUNNING = (
    ("r-gpus", "--account=gpus", "--gres=gpu:2", "--time=30"),
    ("r-few", "--account=few"),
    ("r-cpus", "--qos=cpus"),
    ("r-pairs", "--qos=pairs"),
)
WAITING = {
    "AssocGrpGRES": (
        ("--account=gpus", "--nodes=2", "--gres=gpu:1"),
        r"account gpus uses 2 of 2 GPUs, 2 more are asked \(AssocGrpGRES\)\. "
        r"Next to end: job {r-gpus} \(2 GPUs\), by [0-9: -]+ UTC\. 0 nodes would fit\.",
    ),
    "AssocGrpJobsLimit": (
        ("--account=deep",),
        r"account lab uses 1 of 1 jobs, 1 more is asked \(AssocGrpJobsLimit\)\.",
    ),
    "QOSGrpCpuLimit": (("--qos=cpus",), r"QOS cpus uses 1 of 1 CPUs, 1 more is asked \(QOSGrpCpuLimit\)\."),
    "QOSMaxJobsPerUserLimit": (
        ("--qos=pairs",),
        r"user {user} in QOS pairs uses 1 of 1 jobs, 1 more is asked \(QOSMaxJobsPerUserLimit\)\.",
    ),
    "QOSMaxNodePerJobLimit": (
        ("--qos=wide", "--nodes=2"),
        r"QOS wide lets a job ask for at most 1 of nodes, 2 are asked \(QOSMaxNodePerJobLimit\)\.",
    ),
    "Resources": (
        ("--nodes=3", "--exclusive", "--nice=0"),
        r"Resources: all nodes that fit are busy, down or drained\. Next to end: job {r-gpus} .*",
    ),
    "Priority": (("--nodes=3", "--exclusive", "--nice=100"), r"Priority: others are ahead in the queue\."),
    "Dependency": (
        ("--dependency=afterok:{r-few}",),
        r"it depends on other jobs, afterok:{r-few}\(unfulfilled\) \(Dependency\)\.",
    ),
    "PartitionTimeLimit": (
        ("--partition=short", "--time=10"),
        r"partition short allows 00:02:00, 10:00 are asked \(PartitionTimeLimit\)\.",
    ),
    "PartitionNodeLimit": (
        ("--partition=short", "--nodes=3"),
        r"partition short allows [01] to 2 nodes of 4, 3 are asked \(PartitionNodeLimit\)\.",
    ),
    "ReqNodeNotAvail": (
        ("--nodelist=m4",),
        r"ReqNodeNotAvail, UnavailableNodes:m4: nodes are down, drained or reserved\.",
    ),
    "JobHeldUser": (("--hold",), r"JobHeldUser: its owner holds it: scontrol release\."),
    "JobHeldAdmin": (("--begin=now+9",), r"JobHeldAdmin: an administrator holds it\."),
    "BeginTime": (("--begin=now+3600",), r"it begins at [0-9: -]+ UTC at the earliest \(BeginTime\)\."),
}
"""Reason -> options of sbatch, and the expected answer."""


@pytest.fixture(scope="module")
def pending_jobs(daemons: Slurm) -> Iterator[dict[str, str]]:
    """Name of each job -> its id. All reasons are planted at once."""
    assert daemons.accounts is not None
    for line in LIMITS:
        daemons.accounts.manage(*line.format(user=daemons.user).split(), environment=daemons.environment)
    daemons.told("scontrol", "create", "PartitionName=short", "Nodes=m[1-4]", "MaxTime=2", "MaxNodes=2")
    daemons.told("scontrol", "update", "NodeName=m4", "State=drain", "Reason=penstock q-41: 4 wrong reads")
    ids = {"user": daemons.user}

    def submit(name: str, *options: str) -> None:
        command = ("sbatch", "--parsable", f"--job-name={name}", "--output=/dev/null", "--wrap=sleep 600")
        ids[name] = daemons.told(*command, *(option.format(**ids) for option in options)).strip()
        assert ids[name].isdigit(), name

    for name, *options in RUNNING:
        submit(name, *options)
    until(lambda: daemons.told("squeue", "-h", "-t", "running", "-o", "%i").count("\n") == len(RUNNING))
    for name, (options, _) in WAITING.items():
        submit(name, *options)
    daemons.told("scontrol", "hold", ids["JobHeldAdmin"])
    waiting = lambda: daemons.told("squeue", "-h", "-t", "pending", "-o", "%j %r")  # noqa: E731
    until(lambda: all(f"{name} {name}" in waiting() for name in WAITING))
    yield ids
    daemons.told("scontrol", "update", "NodeName=m4", "State=resume")
    daemons.end_jobs()
    daemons.told("scontrol", "delete", "PartitionName=short")


@pytest.mark.parametrize("reason", WAITING)
def test_reason_is_named(pending_jobs: dict[str, str], reason: str) -> None:
    text = why_name_waits(SlurmQueue().answer, reason)
    expected = re.sub(r"\{([a-z-]+)\}", lambda match: pending_jobs[match[1]], WAITING[reason][1])
    assert re.match(rf"waits \d+ (s|min): {expected}", text), text
    assert text.endswith(f"\nOut of service: m4 (penstock q-41: 4 wrong reads, by {pending_jobs['user']})")


def test_job_that_runs_waits_for_nothing(pending_jobs: dict[str, str]) -> None:
    assert why_name_waits(SlurmQueue().answer, "r-gpus") == ""
    assert why_name_waits(SlurmQueue().answer, "no-such-job") == ""
