"""Slurm's queue as its commands show it, with the real daemons: nodes and the controller are killed meanwhile."""

import itertools
import sys
from contextlib import suppress

import pytest

from loader.errors import EngineUnreachable, InvalidCluster
from penstock.compute.engines.slurm import ENDED, MOST_STARTS, RUNNING, WAITING, SlurmQueue, element_script
from tests.servers.patience import until

pytestmark = pytest.mark.slurm
_numbers = itertools.count()

RUNNER = """\
import os, pathlib, signal, sys, time
folder, ask = pathlib.Path(sys.argv[1]), sys.argv[2]
assert (sys.argv[3], sys.argv[5]) == ("--element", "--elements")
mine = folder / f"{sys.argv[4]}-{os.getpid()}"
signal.signal(signal.SIGTERM, lambda *_: (mine.with_suffix(".told").touch(), sys.exit(3)))
mine.write_text(os.environ.get("FROM_THE_NODE", "nothing"))  # now it may be cancelled
if ask == "once-dies" and len(list(folder.glob(sys.argv[4] + "-*"))) < 2:
    os.kill(os.getpid(), signal.SIGKILL)
if ask == "fails":
    sys.exit(5)
time.sleep({"short": 0, "once-dies": 0, "long": 600, "deaf": 600}[ask]) if ask != "deaf" else None
if ask == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.fixture
def submit_job(slurm_cluster, tmp_path):
    """submit_job("long", elements=4, options=[...]) -> (queue, name, the folder of what began)."""
    queue, names = SlurmQueue(), []
    runner, environment, begun = tmp_path / "runner.py", tmp_path / "environment", tmp_path / "begun"
    runner.write_text(RUNNER)
    environment.write_text("FROM_THE_NODE='kept on the node'\n")
    begun.mkdir()

    def submit(ask, *, elements=1, options=(), through=queue, final=(0,)):
        name = f"pk-test-{next(_numbers)}"
        command = [sys.executable, str(runner), str(begun), ask]
        script = element_script(
            command, environment=str(environment), first=0, elements=elements, final=final
        )
        told = ["--export=NONE", f"--output={tmp_path}/{name}-%a.out", "--open-mode=append", "--requeue"]
        through.submit(
            script, [f"--job-name={name}", f"--array=0-{elements - 1}", "--ntasks=1", *told, *options]
        )
        names.append(name)
        return queue, name, begun

    yield submit
    for name in names:
        queue.cancel(name)


def has_ended(queue, name):
    elements = queue.elements(name)
    return bool(elements.states) and elements.count(ENDED) == sum(elements.states.values())


def test_elements_are_placed_found_and_end(submit_job):
    queue, name, begun = submit_job("short", elements=8)
    assert sum(queue.elements(name).states.values()) == 8
    until(lambda: has_ended(queue, name))
    assert queue.elements(name).states == {"COMPLETED": 8}
    assert sorted(path.name.partition("-")[0] for path in begun.iterdir()) == [str(n) for n in range(8)]
    assert {path.read_text() for path in begun.iterdir()} == {"kept on the node"}
    assert not queue.elements(name + "0").states


def test_prefix_gets_one_line_for_a_shell(submit_job):
    queue, name, begun = submit_job("short", through=SlurmQueue(["sh", "-c"]))
    until(lambda: has_ended(queue, name))
    assert len(list(begun.iterdir())) == 1


def test_runner_that_was_killed_begins_again_at_once(submit_job, slurm_cluster):
    queue, name, begun = submit_job("once-dies", elements=2)
    until(lambda: has_ended(queue, name))
    assert queue.elements(name).states == {"COMPLETED": 2}
    assert len(list(begun.iterdir())) == 4


def test_final_exit_begins_no_other_runner(submit_job, tmp_path):
    queue, name, begun = submit_job("fails", final=(0, 5))
    until(lambda: has_ended(queue, name))
    assert queue.elements(name).states == {"FAILED": 1}
    assert len(list(begun.iterdir())) == 1 < MOST_STARTS


def test_element_that_waits_says_why(submit_job):
    queue, name, _ = submit_job("long", elements=12)
    until(lambda: queue.elements(name).count(RUNNING) == 8)
    until(lambda: "Resources" in queue.elements(name).reason)
    found = queue.elements(name)
    assert found.count(WAITING) == 4
    number, _, partition = found.place.removeprefix("Slurm job ").partition(" in partition ")
    assert (number.isdigit(), partition) == (True, "batch")


def test_cancel_tells_the_runner_and_leaves_no_process(submit_job, slurm_cluster):
    queue, name, begun = submit_job("long", elements=12)
    until(lambda: len(list(begun.iterdir())) == 8)
    queue.cancel(name)
    until(lambda: not slurm_cluster.processes())  # the kernel takes them away a moment after Slurm's word
    assert len(list(begun.glob("*.told"))) == 8
    assert set(queue.elements(name).states) == {"CANCELLED"}


def test_cancel_ends_a_runner_that_ignores_it(submit_job, slurm_cluster):
    queue, name, begun = submit_job("deaf", elements=2)
    until(lambda: len(list(begun.iterdir())) == 2)
    queue.cancel(name)
    until(lambda: not slurm_cluster.processes())  # the kernel takes them away a moment after Slurm's word


def test_controller_out_of_reach_is_not_an_end(submit_job, slurm_cluster):
    queue, name, begun = submit_job("long", elements=4)
    until(lambda: len(list(begun.iterdir())) == 4)
    slurm_cluster.wait_until_saved()
    slurm_cluster.kill_head()
    try:
        for asked in (queue.elements, queue.cancel, lambda _: submit_job("short")):
            with pytest.raises(EngineUnreachable):
                asked(name)
    finally:
        slurm_cluster.start_head()
    until(lambda: waits_or_runs(queue, name) == 4)


def waits_or_runs(queue, name):
    with suppress(EngineUnreachable):
        return queue.elements(name).count(WAITING | RUNNING)


def test_secrets_of_who_submits_reach_neither_slurm_nor_the_nodes(submit_job, slurm_cluster, monkeypatch):
    monkeypatch.setenv("PLANTED", "PLANTEDsecretPLANTED")
    _, _, begun = submit_job("long")
    until(lambda: len(list(begun.iterdir())) == 1)
    kept = {}
    for path in slurm_cluster.folder.rglob("*"):
        with suppress(FileNotFoundError):  # the daemons replace files meanwhile
            if path.is_file():
                kept[path] = path.read_bytes()
    assert [path for path in kept if path.name == "environment"]
    assert not [path for path, data in kept.items() if b"PLANTED" in data]
    assert "PLANTED" not in slurm_cluster.told("scontrol", "show", "job", "-d")


def test_job_that_slurm_refuses_names_its_reason(submit_job):
    with pytest.raises(InvalidCluster, match="partition"):
        submit_job("short", options=["--partition=nowhere"])


def test_without_commands_of_slurm_the_error_says_what_to_do():
    with pytest.raises(InvalidCluster, match="ssh"):
        SlurmQueue(["no-such-command"]).elements("pk-none")
