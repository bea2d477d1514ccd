"""Elements that Slurm holds for ever: they are released, or cancelled for a further attempt; a refusal is logged."""

import sys

import pytest

from penstock.compute.engines.slurm import SlurmCluster, SlurmEngine, SlurmQueue
from penstock.nodes.control import SlurmNodes

LOGIN = """\
import shlex, sys
words = shlex.split(sys.argv[1])
open({log!r}, "a").write(" ".join(words) + "\\n")
if words[:2] == ["scontrol", "release"] and {refusal!r} or words[0] == "scancel" and {is_foreign!r}:
    sys.exit({refusal!r})
listed = [("12_0", "JobHoldMaxRequeue"), ("12_1", "JobHeldAdmin"), ("14_2", "launch failed requeued held")]
if words[0] == "squeue" and any(word.startswith("--name=") for word in words):
    print("\\n".join(f"{{job}}|batch|PENDING|{{reason}}" for job, reason in listed))
elif words[0] == "squeue" and any(word.startswith("--jobs=") for word in words):
    print("\\n".join(f"{{job}}|pk-" for job, _ in listed))
elif words[0] == "squeue":
    print("\\n".join(f"{{job}}|{{reason}}" for job, reason in listed))
"""


@pytest.fixture
def slurm(tmp_path):
    """slurm(refusal) -> (prefix of commands, function that returns the changing ones so far)."""

    def answering(refusal="", is_foreign=False):
        log = tmp_path / "log"
        log.touch()
        (tmp_path / "login.py").write_text(LOGIN.format(log=str(log), refusal=refusal, is_foreign=is_foreign))
        prefix = [sys.executable, str(tmp_path / "login.py")]
        return prefix, lambda: [
            line for line in log.read_text().splitlines() if not line.startswith("squeue")
        ]

    return answering


def test_element_that_slurm_holds_is_released_and_an_administrators_is_not(slurm):
    prefix, changes = slurm()
    status = SlurmEngine(SlurmCluster(slots=2, submit=prefix)).status("pk-a")
    assert (status.state, changes()) == ("waiting", ["scontrol release 12_0,14_2"])
    assert SlurmNodes(SlurmQueue(prefix)).release_runs() == ["Slurm job 12_0", "Slurm job 14_2"]
    assert changes()[1:] == ["scontrol release 12_0,14_2"]


def test_elements_that_only_an_operator_may_release_are_cancelled_for_a_further_attempt(slurm, caplog):
    prefix, changes = slurm("Access/permission denied for job 12_0")
    SlurmEngine(SlurmCluster(slots=2, submit=prefix)).status("pk-a")
    assert changes() == ["scontrol release 12_0,14_2", "scancel 12_0 14_2"]
    assert "only an operator of Slurm may release 12_0, 14_2: cancelled" in caplog.text


def test_rest_of_a_done_attempt_is_cancelled(slurm):
    prefix, changes = slurm()
    SlurmEngine(SlurmCluster(slots=2, submit=prefix)).withdraw("pk-a")
    assert changes() == ["scancel --name=pk-a"]


def test_job_of_another_user_is_shown_with_its_held_elements(slurm, caplog):
    prefix, _ = slurm("Access/permission denied for job 12_0", is_foreign=True)
    assert SlurmEngine(SlurmCluster(slots=2, submit=prefix)).status("pk-a").waiting == 3
    assert "scancel ended with 1" in caplog.text


@pytest.mark.parametrize(
    ("refusal", "released"),
    [("slurm_load_jobs error: Unable to contact slurm controller", True), ("permission denied", False)],
)
def test_refused_release_is_no_secret(slurm, caplog, refusal, released):
    prefix, _ = slurm(refusal)
    assert SlurmQueue(prefix).release(["14_2"]) is released
    assert (refusal in caplog.text) == released, "the caller says what it does instead"
