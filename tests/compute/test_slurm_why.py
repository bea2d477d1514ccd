"""Words for a waiting Slurm job from recorded answers of scontrol, squeue and sinfo."""

import re
import time
from collections.abc import Sequence

import pytest

from loader.errors import EngineUnreachable
from penstock.compute.engines.slurm_listing import (
    QueuedJob,
    list_jobs,
    list_queue,
    parse_resources,
    preemption_words,
)
from penstock.compute.engines.slurm_why import UNLIMITED, find_limit, why_waiting
from tests.compute.slurm_answers import printed
from tests.refusals import refusal

NONE = "cpu=N(2),mem=N(0),node=N(1),billing=N(2),gres/gpu=N(2)"
ROW = "ClusterName=c Account={account} UserName={user} Partition= Priority=0 ID=4 ParentAccount={parent} {limits}"
ASSOCIATIONS = "\n".join(
    [
        "Current Association Manager state",
        "Association Records",
        ROW.format(account="root", user="", parent="", limits=f"GrpJobs=N(9) GrpTRES={NONE}"),
        ROW.format(
            account="lab",
            user="",
            parent="root(1)",
            limits=f"GrpJobs=20(20) GrpTRES={NONE.replace('cpu=N', 'cpu=900')}",
        ),
        ROW.format(
            account="vision",
            user="",
            parent="lab(3)",
            limits="GrpJobs=5(2) GrpTRES=cpu=N(320),mem=N(0),node=64(5),gres/gpu=64(40) "
            "GrpTRESRunMins=cpu=N(8589934590),gres/gpu=100(99)",
        ),
        ROW.format(
            account="vision",
            user="ann(1000)",
            parent="",
            limits=f"GrpJobs=N(2) GrpTRES={NONE} MaxJobs=50(50) MaxTRESPJ=node=4,gres/gpu=32 MaxWallPJ=",
        ),
        ROW.format(account="vision", user="bob(1001)", parent="", limits="MaxJobs=1(1) MaxTRESPJ=node=1"),
    ]
)
QOS = (
    "QOS=high(4) UsageRaw=0.000000 GrpJobs=N(1) GrpTRES=cpu=200(100),node=4(4),gres/gpu=N(0) MaxTRESPJ=node=2 "
    "MinTRESPJ=gres/gpu=8 PreemptMode=OFF Priority=1000 Account Limits= vision={{MaxJobsPA=3(3) MaxTRESPA=node=N(1)}} "
    "User Limits= {ann}={{MaxJobsPU=1(1) MaxTRESPU=cpu=N(1),gres/gpu=16(16)}} 77={{MaxJobsPU=1(0)}}"
)
NOW_S = 1_800_000_000
JOB = QueuedJob(
    job_id="9",
    state="PENDING",
    account="vision",
    user="ann",
    user_id="1000",
    qos="high",
    partition="long",
    nodes=8,
    resources={"cpu": 256, "node": 8, "gres/gpu": 64},
    submitted_s=NOW_S - 7_800,
)


def job(reason: str, **more: object) -> QueuedJob:
    return QueuedJob(**{name: getattr(JOB, name) for name in JOB.__slots__} | {"reason": reason, **more})


def row(job_id: int, tres: str, end_s: object, account: str = "vision") -> tuple[object, ...]:
    return (
        job_id,
        "RUNNING",
        account,
        "bob",
        1001,
        "high",
        "long",
        4,
        tres,
        "1:00:00",
        1,
        end_s,
        1,
        "(null)",
        "None",
    )


IDLE = (("drained", 2, "n[4-5]"), ("idle", 3, "n[1-3]"), ("idle*", 1, "n9"))
PARTITION = (
    "PartitionName=long AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE MaxNodes=4 MaxTime=1-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-9] "
    "State=UP TotalCPUs=18 TotalNodes=9 MaxMemPerNode=UNLIMITED TRES=cpu=18,mem=8000M,node=9"
)
"""As Slurm 22.05 prints it."""


def answer(ann: str = "1000", drained: tuple[tuple[str, ...], ...] = (), **more: str):
    """answer(...) -> an `Answer` of a recorded cluster."""
    ends = [row(8124, "cpu=8,gres/gpu=8", "N/A"), row(8123, "cpu=8,mem=1G,gres/gpu=32", NOW_S + 2_400)]
    texts = {
        "flags=assoc": ASSOCIATIONS,
        "flags=qos": QOS.format(ann=ann),
        "partition": PARTITION,
        **more,
    }
    tables = {"squeue": ends, "-R": drained, "--states=idle": IDLE}

    def answer(command) -> str:
        for word, rows in tables.items():
            if word in command:
                return printed(command, *rows)
        return next(text for key, text in texts.items() if key in command)

    return answer


def test_limit_is_said_with_its_users_the_next_end_and_the_nodes_that_fit() -> None:
    drained = (
        ("m3", "penstock", "penstock q-41: 4 wrong of 1,912 reads"),
        ("m7", "ann", "fan|loud\nm1|idle|none"),
    )
    end = time.strftime("%Y-%m-%d ", time.gmtime(NOW_S + 2_400)).removeprefix(
        time.strftime("%Y-%m-%d ", time.gmtime(NOW_S))
    ) + time.strftime("%H:%M UTC", time.gmtime(NOW_S + 2_400))
    assert why_waiting(answer(drained=drained), job("AssocGrpGRES"), NOW_S) == (
        "waits 2 h 10 min: account vision uses 40 of 64 GPUs, 64 more are asked (AssocGrpGRES). "
        f"Next to end: job 8123 (32 GPUs), by {end}. 3 nodes would fit.\n"
        "Out of service: m3 (penstock q-41: 4 wrong of 1,912 reads, by penstock); m7 (fan|loud m1|idle|none, by ann)"
    )


@pytest.mark.parametrize(
    ("reason", "owner", "resource", "limit", "used", "asked"),
    [
        ("AssocGrpJobsLimit", "account lab", "jobs", 20, 20, 1),
        ("AssocGrpNodeLimit", "account vision", "node", 64, 5, 8),
        ("AssocGrpCpuLimit", "account lab", "cpu", 900, 2, 256),
        ("AssocGrpGRESRunMinutes", "account vision", "gres/gpu minutes", 100, 99, 0),
        ("AssocMaxJobsLimit", "user ann in account vision", "jobs", 50, 50, 1),
        ("AssocMaxNodePerJobLimit", "user ann in account vision", "node", 4, None, 8),
        ("AssocMaxGRESPerJob", "user ann in account vision", "gres/gpu", 32, None, 64),
        ("QOSGrpCpuLimit", "QOS high", "cpu", 200, 100, 256),
        ("QOSGrpNodeLimit", "QOS high", "node", 4, 4, 8),
        ("QOSMaxNodePerJobLimit", "QOS high", "node", 2, None, 8),
        ("QOSMinGRES", "QOS high", "gres/gpu", 8, None, 64),
        ("QOSMaxJobsPerUserLimit", "user ann in QOS high", "jobs", 1, 1, 1),
        ("QOSMaxGRESPerUser", "user ann in QOS high", "gres/gpu", 16, 16, 64),
        ("QOSMaxJobsPerAccountLimit", "account vision in QOS high", "jobs", 3, 3, 1),
        ("MaxJobsPerAccount", "account vision in QOS high", "jobs", 3, 3, 1),
    ],
)
@pytest.mark.parametrize("ann", ["1000", "ann(1000)"])
def test_limit_behind_a_reason(ann, reason, owner, resource, limit, used, asked) -> None:
    behind = find_limit(answer(ann), job(reason))
    assert behind is not None
    assert (behind.owner, behind.resource, behind.limit, behind.used) == (owner, resource, limit, used)
    assert behind.asked == asked


@pytest.mark.parametrize("reason", ["Resources", "AssocGrpEnergy", "QOSMaxMemoryPerUser", "JobHeldUser", ""])
def test_reason_without_a_limit_names_none(reason) -> None:
    assert find_limit(answer(), job(reason)) is None


def test_unknown_reason_stays_in_slurms_words() -> None:
    text = why_waiting(answer(), job("BurstBufferStageIn"), NOW_S)
    assert text == "waits 2 h 10 min: BurstBufferStageIn."


def test_association_of_another_account_counts_only_below_its_own() -> None:
    behind = find_limit(answer(), job("AssocGrpJobsLimit"))
    assert behind is not None
    assert behind.filters == ("--account=lab,vision",)


@pytest.mark.parametrize("end", [0, 40])
def test_answer_that_is_cut_off_is_no_end_of_a_job(end: int) -> None:
    with refusal(EngineUnreachable, what="squeue"):
        list_queue(lambda command: f"slurm_load_jobs: {printed(command, row(1, 'cpu=1', 5))}"[: 20 + end])


def test_text_of_a_job_shifts_no_column_and_forges_no_job() -> None:
    rows = [row(12, "cpu=8", 5, account="a|b\n13|RUNNING|c"), row(14, "cpu=8", 5, account="d")]
    jobs = list_queue(lambda command: "Welcome to login1\n" + printed(command, *rows))
    assert [(job.job_id, job.account, job.user) for job in jobs] == [
        ("12", "a|b\n13|RUNNING|c", "bob"),
        ("14", "d", "bob"),
    ]
    (named,) = list_jobs(lambda command: printed(command, (*rows[1], "x|y\nz", "")), "x|y\nz")
    assert (named.job_id, named.name) == ("14", "x|y\nz")


def test_drained_nodes_are_not_idle() -> None:
    text = why_waiting(answer(drained=(("n[4-5]", "ann", "smoke"),)), job("Resources"), NOW_S)
    assert "3 of the 8 nodes are idle: n[1-3]." in text
    assert text.endswith("Out of service: n[4-5] (smoke, by ann)")
    down = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    text = why_waiting(answer(), job(down), NOW_S)
    assert f"{down}: too few nodes are in service." in text
    assert "3 of the 8 nodes are idle: n[1-3]." in text


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ("MaxNodes=4", {"nodes": 8}, "allows 0 to 4 nodes of 9, 8 are asked (PartitionConfig)."),
        (
            "MaxNodes=UNLIMITED",
            {"nodes": 10},
            "allows 0 to UNLIMITED nodes of 9, 10 are asked (PartitionConfig).",
        ),
        (
            "MaxTime=02:00:00",
            {"nodes": 1, "limit": "3-00:00:00"},
            "allows 02:00:00, 3-00:00:00 are asked (PartitionConfig).",
        ),
        (
            "MaxTime=02:00:00",
            {"nodes": 5, "limit": "UNLIMITED"},
            "allows 0 to 4 nodes of 9, 5 are asked; and 02:00:00, UNLIMITED are asked (PartitionConfig).",
        ),
        (
            "MaxMemPerNode=1000",
            {"nodes": 2, "resources": {"mem": 3000}},
            "allows 1,000 MiB of memory on a node, 1,500 are asked (PartitionConfig).",
        ),
        (
            "MaxCPUsPerNode=1",
            {"nodes": 2, "resources": {"cpu": 4}},
            "allows 1 CPUs on a node, 2 are asked (PartitionConfig).",
        ),
        ("State=DOWN", {"nodes": 1}, "allows no job: its state is DOWN (PartitionConfig)."),
        ("AllowQos=low", {"nodes": 1}, "allows Qos low, it has high (PartitionConfig)."),
        (
            "AllowQos=ALL",
            {"nodes": 1, "limit": "1:00:00"},
            "PartitionConfig: the partition never gives what it asks for: partition long allows "
            "0 to 4 nodes of 9, 1 are asked; 1-00:00:00, 1:00:00 are asked.",
        ),
    ],
)
def test_setting_of_the_partition_is_named_with_its_numbers(changes, asked, words) -> None:
    name = changes.partition("=")[0]
    text = re.sub(rf"{name}=\S+", changes, PARTITION)
    said = why_waiting(answer(partition=text), job("PartitionConfig", **asked), NOW_S)
    assert said == f"waits 2 h 10 min: {'' if words.startswith('P') else 'partition long '}{words}"


def test_resources_are_numbers() -> None:
    assert parse_resources("cpu=8,mem=62.50G,node=2,gres/gpu=4,gres/gpu:a100=4") == {
        "cpu": 8,
        "mem": 64_000,
        "node": 2,
        "gres/gpu": 4,
        "gres/gpu:a100": 4,
    }


@pytest.mark.parametrize(
    ("config", "qos", "words"),
    [
        (
            "preempt/qos|REQUEUE|30 sec",
            "00:02:00|requeue",
            "leaves 150 s (GraceTime 120 of QOS high, KillWait 30)",
        ),
        (
            "preempt/qos|REQUEUE|30 sec",
            "00:00:00|cluster",
            "leaves 30 s (GraceTime 0 of QOS high, KillWait 30): less",
        ),
        ("preempt/qos|REQUEUE|30 sec", "1-00:00:00|", "leaves 86430 s"),
        ("preempt/qos|REQUEUE|30 sec", "00:02:00|off", ""),
        (
            "preempt/qos|GANG,SUSPEND|30 sec",
            "00:02:00|cluster",
            "suspends it (QOS high), and lets it save nothing",
        ),
        ("preempt/qos|REQUEUE|30 sec", "", ""),
        ("preempt/none|OFF|30 sec", "", ""),
        (
            "preempt/partition_prio|REQUEUE|9 sec",
            "",
            "leaves 16 s (GraceTime 7 of partition long, KillWait 9)",
        ),
    ],
)
def test_grace_of_a_preemption_is_read(config, qos, words) -> None:
    values = dict(zip(("PreemptType", "PreemptMode", "KillWait"), config.split("|"), strict=True))
    text = "".join(f"{name:<24}= {value}\n" for name, value in values.items())
    more = {
        "config": text,
        "sacctmgr": f"high|{qos}|low\nurgent|00:00:00|cluster|low,high\n"
        if qos
        else "high|00:02:00||low\nlow|||high-2\n",
        "partition": "GraceTime=7 Hidden=NO PreemptMode=REQUEUE State=UP",
    }
    said = preemption_words(answer(**more), job(""), 60)
    assert words in said
    assert bool(said) == bool(words)


YEAR_S = 365 * 86_400


@pytest.mark.parametrize("reason", ["Resources", "AssocGrpGRES"])
def test_job_without_a_time_limit_names_no_end(reason: str) -> None:
    def unlimited(number: int) -> tuple[object, ...]:
        cells = list(row(number, "cpu=8,node=3,gres/gpu=8", NOW_S + YEAR_S))
        cells[9] = UNLIMITED
        return tuple(cells)

    def words(*running: tuple[object, ...], expected_s: int = NOW_S + YEAR_S) -> str:
        def cluster(command: Sequence[str]) -> str:
            if "squeue" in command:
                return printed(command, *running)
            if "--states=idle" in command:
                return printed(command, ("idle", 1, "n1"))
            return answer()(command)

        return why_waiting(cluster, job(reason, start_s=expected_s), NOW_S)

    text = words(unlimited(5))
    share = "8 GPUs" if reason == "AssocGrpGRES" else "3 nodes"
    assert f"No end is known: job 5 ({share}) has no time limit." in text
    assert "Next to end" not in text
    assert "expects" not in text
    assert f"job 5 ({share}) has no time limit, nor has 1 other." in words(unlimited(5), unlimited(6))
    limited = row(8, "cpu=8,node=3,gres/gpu=8", NOW_S + 600)
    text = words(unlimited(5), limited, expected_s=NOW_S + 600)
    assert f"Next to end: job 8 ({share}), by" in text
    if reason == "Resources":
        assert "Slurm expects to begin it by" in text
        assert "1 of the 8 nodes is idle: n1." in text
