"""Slurm's accounting: lines of a real slurmdbd 22.05, and lines that are damaged or forged."""

import os
import subprocess

import pytest

from loader.errors import Corrupt, EngineUnreachable
from penstock.usage.sacct import AccountedJob, account_jobs, expand_nodes, parse_jobs, sacct_command
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

REAL = """\
1|a|root|vision|normal|batch|PREEMPTED|1795764221|1795764221|4|m[1-4]|billing=1,cpu=1,gres/gpu=4,mem=4000M,node=2|\
billing=8,cpu=8,gres/gpu=8,node=4|525600|None|1795764225
2|done|root|root|normal|batch|PENDING|1795764221|Unknown|1|None assigned|billing=1,cpu=1,mem=2000M,node=1||\
Partition_Limit|None|Unknown
1|a|root|vision|normal|batch|RUNNING|1795764225|1795764238|4|m[1-4]|billing=1,cpu=1,gres/gpu=4,mem=4000M,node=2|\
billing=8,cpu=8,gres/gpu=8,node=4|UNLIMITED|BeginTime|Unknown
4|pre|root|root|normal|high|COMPLETED|1795764225|1795764225|4|m[1-4]|billing=4,cpu=4,mem=8000M,node=4|\
billing=8,cpu=8,gres/gpu:fake=8,node=4|60|None|1795764237
7|waits|root|root|normal|batch|CANCELLED by 0|1795764226|None|4|None assigned|\
billing=4,cpu=4,gres/gpu=8,mem=8000M,node=4||Partition_Limit|None|1795764233
"""
LINE = "9|x|ann|vision|normal|batch|COMPLETED|100|110|1|m1|gres/gpu=2|gres/gpu=2|60|None|120"


def test_jobs_of_a_real_accounting():
    preempted, waiting, short, again, cancelled = parse_jobs(REAL)
    assert preempted == AccountedJob(
        job_id="1",
        name="a",
        user="root",
        account="vision",
        qos="normal",
        partition="batch",
        state="PREEMPTED",
        submitted_us=1795764221_000000,
        begun_us=1795764221_000000,
        ended_us=1795764225_000000,
        nodes=4,
        node_names=("m1", "m2", "m3", "m4"),
        gpus=8,
        reason="",
        asked_gpus=4,
    )
    assert (again.job_id, again.begun_us, again.ended_us, again.reason) == (
        "1",
        1795764238_000000,
        None,
        "BeginTime",
    )
    assert (waiting.begun_us, waiting.ended_us, waiting.node_names, waiting.gpus) == (None, None, (), 0)
    assert (short.gpus, short.limit_s) == (8, 3600)
    assert (cancelled.state, cancelled.begun_us, cancelled.ended_us) == ("CANCELLED", None, 1795764233_000000)
    assert (cancelled.gpus, cancelled.node_names) == (8, ())


@pytest.mark.parametrize(
    ("change", "what", "value"),
    [
        (("9|x|", "9|x|more|"), "record", 17),
        (("|120", ""), "record", "cut off"),
        (("9|x", "9; rm|x"), "JobID", "9; rm"),
        (("|100|", "|soon|"), "Submit", "soon"),
        (("|100|", "|Unknown|"), "Submit, Start, End", ["Unknown", "110", "120"]),
        (("|120", "|90"), "Submit, Start, End", ["100", "110", "90"]),
        (("|1|m1|", "|-1|m1|"), "NNodes", "-1"),
        (("|m1|", "|m[1-999999999]|"), "NodeList", "1-999999999"),
        (("gres/gpu=2|60", "gres/gpu=many|60"), "gres/gpu=many", "many"),
        (("|60|", "|" + "6" * 13 + "|"), "TimelimitRaw", "6" * 13),
    ],
)
def test_damaged_line_is_named(change, what, value):
    with refusal(Corrupt, what=what, where="sacct, line 2", given=value):
        parse_jobs(f"{LINE}\n{LINE.replace(*change)}")


def test_job_name_forges_no_record():
    name = f"x|y\n{LINE}\n"

    def answer(command):
        delimiter = next(word for word in command if word.startswith("--delimiter=")).partition("=")[2]
        fields = LINE.split("|")
        return delimiter.join([fields[0], name, *fields[2:]]) + "\n"

    (job,) = account_jobs(answer, name="x")
    assert job.name == name


def test_months_are_asked_week_by_week_and_each_start_counts_once():
    week, asked = 7 * 86_400, []
    pending = "9|x|ann|vision|normal|batch|PENDING|100|Unknown|1|None assigned|gres/gpu=2||60|None|Unknown"
    answers = [f"{REAL}{pending}", f"{REAL}{LINE}", LINE]

    def answer(command):
        options = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
        asked.append((options["--starttime"], options.get("--endtime")))
        return answers[len(asked) - 1].replace("|", options["--delimiter"]) + "\n"

    jobs = account_jobs(answer, since_us=week * 1_000_000, until_us=(3 * week + 60) * 1_000_000)
    assert asked == [
        ("1970-01-08T00:00:00", "1970-01-15T00:00:00"),
        ("1970-01-15T00:00:00", "1970-01-22T00:00:00"),
        ("1970-01-22T00:00:00", "1970-01-22T00:01:00"),
    ]
    assert jobs == parse_jobs(f"{REAL}{LINE}"), "job 9 waited first"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("m1", ["m1"]),
        ("m[1-3,5]", ["m1", "m2", "m3", "m5"]),
        ("gpu[08-11],login", ["gpu08", "gpu09", "gpu10", "gpu11", "login"]),
        ("r[1-2]n[3-4]x", ["r1n3x", "r1n4x", "r2n3x", "r2n4x"]),
    ],
)
def test_node_list_expands(text, names):
    assert list(expand_nodes(text)) == names


@pytest.mark.parametrize(
    ("text", "part", "accepted"),
    [
        ("m[1-", "m[1-", None),
        ("m[3-1]", "3-1", 65_536),
        ("m[]", "m[]", None),
        ("m1,", "", 65_536),
        ("m[1-65536],m0", "m0", 65_536),
        ("a[1-999]b[1-999]", "a[1-999]b[1-999]", 65_536),
        ("m]", "m]", None),
        ("m[1-3]]", "m[1-3]]", None),
    ],
)
def test_node_list_is_bounded(text, part, accepted):
    with refusal(Corrupt, what="NodeList", given=part, accepted=accepted):
        expand_nodes(text)


CONF = """\
ClusterName=tests
SlurmctldHost=localhost
AuthType=auth/none
AccountingStorageType=accounting_storage/none
NodeName=m1
PartitionName=batch Nodes=m1
"""


@pytest.mark.slurm
def test_cluster_without_accounting_is_unreachable(tmp_path):
    (tmp_path / "slurm.conf").write_text(CONF)

    def answer(command):
        environment = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        if ended.returncode:
            raise EngineUnreachable(ended.stderr.strip())
        return ended.stdout

    with pytest.raises(EngineUnreachable, match=r"slurmdbd.*accounting storage is disabled"):
        account_jobs(answer)


@pytest.mark.slurm
def test_all_time_does_not_begin_at_midnight(tmp_path):
    """sacct takes second 0 for no time: the times that it understood are in its complaint about them."""
    (tmp_path / "slurm.conf").write_text(CONF)
    environment = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    command = [*sacct_command(), "--endtime=1970-01-01T00:00:01"]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "Start time (86400) requested is after end time (1)" in ended.stderr
