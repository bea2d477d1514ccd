"""Jobs and elements that Slurm holds for ever: which they are, and what a refused release does."""

import sys

import pytest

from penstock.compute.engines.slurm import LOSSES, SlurmCluster, SlurmEngine, SlurmQueue
from penstock.nodes.control import SlurmNodes

LOGIN = """\
import shlex, sys
words = shlex.split(sys.argv[1])
open({log!r}, "a").write(" ".join(words) + "\\n")
if "release" in words and {refusal!r}:
    sys.exit({refusal!r})
if words[0] == "squeue" and any(word.startswith("--Format=") for word in words):
    asked = next(word for word in words if word.startswith("--jobs=")).removeprefix("--jobs=").split(",")
    for element in asked:
        restarts = {restarts}[element]
        print("|".join([*element.split("_"), str(restarts)]) + "|")
elif words[0] == "squeue" and any(word.startswith("--jobs=") for word in words):
    print("\\n".join(f"{{job}}|pk-" for job in ("12_0", "12_1", "14_2")))
elif words[0] == "squeue":
    listed = [("12_0", "JobHeldAdmin"), ("12_1", "JobHeldAdmin"), ("12_[2-9]", "JobHeldAdmin"), ("15", "JobHeldAdmin")]
    listed += [("14_2", "launch failed requeued held"), ("14_3", "Priority")]
    full = any(word.startswith("--name=") for word in words)
    print("\\n".join(f"{{job}}|batch|PENDING|{{reason}}" if full else f"{{job}}|{{reason}}" for job, reason in listed))
"""
RESTARTS = {"12_0": LOSSES, "12_1": LOSSES - 1}


@pytest.fixture
def slurm(tmp_path):
    """slurm(refusal) -> (prefix of commands, function that returns the changing ones so far)."""

    def answering(refusal=""):
        log = tmp_path / "log"
        log.touch()
        text = LOGIN.format(log=str(log), refusal=refusal, restarts=RESTARTS)
        (tmp_path / "login.py").write_text(text)
        prefix = [sys.executable, str(tmp_path / "login.py")]
        return prefix, lambda: [
            line for line in log.read_text().splitlines() if not line.startswith("squeue")
        ]

    return answering


def test_element_that_slurm_holds_after_losses_is_released_and_an_administrators_is_not(slurm):
    prefix, changes = slurm()
    status = SlurmEngine(SlurmCluster(slots=2, submit=prefix)).status("pk-a")
    assert (status.state, changes()) == ("waiting", ["scontrol release 14_2,12_0"])
    assert SlurmNodes(SlurmQueue(prefix)).release_runs() == ["Slurm job 14_2", "Slurm job 12_0"]
    assert changes()[1:] == ["scontrol release 14_2,12_0"]


def test_elements_that_only_an_operator_may_release_are_cancelled_for_a_further_attempt(slurm, caplog):
    prefix, changes = slurm("Access/permission denied for job 12_0")
    SlurmEngine(SlurmCluster(slots=2, submit=prefix)).status("pk-a")
    assert changes() == ["scontrol release 14_2,12_0", "scancel 14_2 12_0"]
    assert "only an operator of Slurm may release 14_2, 12_0: cancelled" in caplog.text


@pytest.mark.parametrize(
    ("refusal", "released"),
    [("slurm_load_jobs error: Unable to contact slurm controller", True), ("permission denied", False)],
)
def test_refused_release_is_no_secret(slurm, caplog, refusal, released):
    prefix, _ = slurm(refusal)
    assert SlurmQueue(prefix).release(["14_2"]) is released
    assert (refusal in caplog.text) == released, "the caller says what it does instead"
