"""A run's file may change where its batches do not: the change is recorded, and the next start has it."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import loader
from loader.errors import Conflict, Corrupt, InvalidSpec, RunTaken
from penstock.cli import main
from penstock.compute.cluster import Cluster, TrainSettings
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.record_objects.spec_changes import differences
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import resume, stop, submit
from tests.refusals import refusal
from tests.servers.patience import until

FREE = [
    {"command": ("python", "train.py", "2000")},
    {"nodes": "2-4"},
    {"ranks_per_node": 8},
    {"priority": "high"},
    {"walltime_s": 7200},
    {"grace_s": 90},
    {"trackers": ("mlflow",)},
    {"srun": ("--cpu-bind=cores",)},
    {"env": {"NCCL_DEBUG": "INFO"}},
]
FIXED = [{"checkpoints": "file:///elsewhere"}, {"gpus_per_node": 8}]


@pytest.fixture
def record(tmp_path: Path) -> str:
    with loader.Root(tmp_path / "root") as root:
        root.create()
    return str(tmp_path / "root")


def spec(record: str, **more: object) -> RunSpec:
    facts = {"run": "big-7", "command": ("python", "train.py", "1000"), "record": record, **more}
    return RunSpec(**facts)  # type: ignore[arg-type]


def folder_of(record: str) -> RunFolder:
    return RunFolder(loader.Root(record).store, "big-7")


@pytest.mark.parametrize("more", FREE)
def test_change_of_what_decides_no_batch_is_recorded(record: str, more: dict[str, object]) -> None:
    folder, first, second = folder_of(record), spec(record), spec(record, **more)
    folder.put_spec(first, "ann")
    folder.put_spec(second, "bob")
    assert folder.put_spec(second, "eve") == "", "the same file is not a change"
    assert folder.spec() == second
    (change,) = folder.spec_changes()
    assert (change.by, change.spec, change.changed) == ("bob", second, differences(first, second))
    assert change.at_us > 0
    folder.put_spec(first, "ann")
    assert folder.spec() == first, "it may go back"
    assert len(folder.spec_changes()) == 2


@pytest.mark.parametrize("more", FIXED)
def test_change_of_what_a_run_keeps_is_refused_with_the_remedy(record: str, more: dict[str, object]) -> None:
    folder, (name,) = folder_of(record), more
    folder.put_spec(spec(record))
    with pytest.raises(RunTaken, match=rf"differs in {name}: .*another name.*Checkpoints\(root, run\)\.load"):
        folder.put_spec(spec(record, **more))
    assert folder.spec_changes() == []


def test_variable_is_named_by_itself(record: str) -> None:
    old, new = spec(record, env={"A": "1", "B": "2"}), spec(record, env={"B": "3", "C": "4"})
    assert [str(change) for change in differences(old, new)] == [
        "env.A: '1' -> None",
        "env.B: '2' -> '3'",
        "env.C: None -> '4'",
    ]


def test_secret_is_refused_before_anything_is_written(record: str) -> None:
    with refusal(InvalidSpec, what="checkpoints", where="big-7", given="a URL with a secret"):
        folder_of(record).put_spec(spec(record, checkpoints="s3://ann:hunter2@lab/x"))
    assert [info.key for info in folder_of(record).store.list("trainings/")] == []


def test_forged_change_is_damage_and_no_crash(record: str) -> None:
    folder = folder_of(record)
    folder.put_spec(spec(record))
    other = {"format": 1, "at_us": 1, "by": "x", "changed": [], "spec": spec(record, run="big-8").to_json()}
    folder.store.put(folder.key("changes/000001.json"), json.dumps(other).encode())
    with refusal(Corrupt, what="change of a run's file", given="run = 'big-8'"):
        folder.spec()


@pytest.fixture
def launcher(record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRuns]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launcher = LocalRuns(record)
    yield launcher
    launcher.cancel("big-7")
    for process in launcher._begun:
        process.wait()


@pytest.mark.server
def test_next_start_on_this_machine_has_the_changed_file(
    record: str, launcher: LocalRuns, tmp_path: Path
) -> None:
    """The first start ends well, and a change that came meanwhile begins another one, with another number of ranks."""
    (tmp_path / "beside_the_script.py").write_text("")
    wait = (
        "import os, pathlib, sys, time, beside_the_script\n"
        "print('began', os.environ['LEVEL'], 'as', os.environ['RANK'], flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)\n"
    )
    may_end = tmp_path / "may-end"
    script = tmp_path / "train.py"
    script.write_text(wait)
    first = spec(record, command=(sys.executable, str(script), str(may_end)), env={"LEVEL": "one"})
    submit(first, launcher)
    until(lambda: "began one" in launcher.logs("big-7"), lambda: launcher.logs("big-7"))
    place = submit(replace(first, env={"LEVEL": "two"}, ranks_per_node=2), launcher)
    assert place.endswith("; its next start has the changed file")
    assert "began one as 0" in launcher.logs("big-7", rank=0), "lines of an only rank have no name"
    may_end.touch()
    until(lambda: launcher.status("big-7").state == "ended", lambda: launcher.logs("big-7"))
    assert launcher.logs("big-7").count("began two") == 2
    for rank in range(2):
        assert f"began two as {rank}" in launcher.logs("big-7", rank=rank).splitlines()


def test_verb_shows_difference_and_history(
    record: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], launcher: LocalRuns
) -> None:
    folder_of(record).put_spec(spec(record, env={"A": "1"}), "ann")
    file = tmp_path / "run.toml"
    file.write_text(f'run = "big-7"\ncommand = ["python", "train.py", "1000"]\nrecord = "{record}"\n')
    arguments = ["train", "submit", str(file), "--set", "env.A=2", "--set", "grace_s=60"]
    assert main([*arguments, "--dry-run"]) == 0
    words = "grace_s: 30 -> 60"
    assert words in capsys.readouterr().err
    assert folder_of(record).spec_changes() == [], "--dry-run changes nothing"
    folder_of(record).put_spec(spec(record, env={"A": "2"}, grace_s=60), "bob")
    assert main(["train", "show", "big-7", "--root", record]) == 0
    text = capsys.readouterr().out
    assert f"by bob: {words}; env.A: '1' -> '2'" in text
    assert main(["train", "show", "big-7", "--root", record, "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["by"], change["changed"][0]) == ("bob", {"field": "grace_s", "old": 30, "new": 60})


COLUMNS = 17


class Queue:
    """squeue, sbatch and scancel of a cluster with the jobs of one run."""

    def __init__(self) -> None:
        self.jobs: dict[int, list[str]] = {}

    def submit(self, script: str, options: Sequence[str]) -> str:
        number = 7 + len(self.jobs)
        comment = [option.removeprefix("--comment=") for option in options if option.startswith("--comment=")]
        self.jobs[number] = ["PENDING", next(o for o in options if o.startswith("--job-name=")), comment[-1]]
        return str(number)

    def release(self, job_ids: Sequence[str]) -> bool:
        return True

    def answer(self, command: Sequence[str]) -> str:
        if command[0] == "scancel":
            for number in map(int, filter(str.isdigit, command)):
                self.jobs[number][0] = "CANCELLED"
        if "squeue" not in command:
            return ""
        form = next(word for word in command if word.startswith("--Format="))
        mark = form.removeprefix("--Format=JobID:20").partition(",")[0]
        lines = []
        for number, (state, name, comment) in self.jobs.items():
            values = [str(number), state, *[""] * (COLUMNS - 4), name.removeprefix("--job-name="), comment]
            lines.append(mark.join(values) + mark)
        return "\n".join(lines)


@pytest.fixture
def slurm(record: str, tmp_path: Path) -> tuple[SlurmJobs, Queue]:
    settings = TrainSettings(options=("--comment=site: a|b",))
    jobs = SlurmJobs(record, Cluster(engine="slurm", logs=str(tmp_path), train=settings))
    queue = Queue()
    jobs._queue = queue  # type: ignore[assignment]
    return jobs, queue


def test_waiting_job_is_replaced_by_one_with_the_changed_file(
    record: str, slurm: tuple[SlurmJobs, Queue]
) -> None:
    launcher, queue = slurm
    submit(spec(record), launcher)
    assert submit(spec(record), launcher).startswith("Slurm job 7 ")
    assert submit(spec(record, walltime_s=60), launcher).endswith("has the changed file: Slurm job 8")
    assert [job[0] for job in queue.jobs.values()] == ["CANCELLED", "PENDING"]
    assert queue.jobs[8][2].endswith(" site: a|b"), "the cluster's own comment stays"
    assert "changed file" not in submit(spec(record, walltime_s=60), launcher)
    assert len(queue.jobs) == 2


def test_running_job_is_followed_by_one_with_the_changed_file(
    record: str, slurm: tuple[SlurmJobs, Queue]
) -> None:
    launcher, queue = slurm
    submit(spec(record), launcher)
    queue.jobs[7][0] = "RUNNING"
    submit(spec(record, walltime_s=60), launcher)
    submit(spec(record, walltime_s=90), launcher)
    assert [job[0] for job in queue.jobs.values()] == ["RUNNING", "CANCELLED", "PENDING"]
    assert launcher.status("big-7").state == "running"
    assert launcher.why("big-7") == ""


@pytest.mark.parametrize("again", [submit, resume])
def test_waiting_job_is_replaced_by_one_of_the_nodes_that_are_named(
    record: str, slurm: tuple[SlurmJobs, Queue], again: Callable[..., str]
) -> None:
    launcher, queue = slurm
    run = spec(record, nodes="2-4")
    submit(run, launcher)
    assert again(run, launcher, 3).endswith("Slurm job 8")
    assert [job[0] for job in queue.jobs.values()] == ["CANCELLED", "PENDING"]
    assert "Slurm job 8" in again(run, launcher, 3)
    assert len(queue.jobs) == 2, "it is found"
    assert folder_of(record).spec_changes() == [], "the file has the range as before"


def test_file_that_a_stopped_run_refuses_is_not_its_newest(
    record: str, slurm: tuple[SlurmJobs, Queue]
) -> None:
    launcher, _ = slurm
    first = spec(record)
    submit(first, launcher)
    stop(folder_of(record))
    with refusal(Conflict, what="state", where="big-7"):
        submit(spec(record, walltime_s=60), launcher)
    assert folder_of(record).spec() == first
    assert folder_of(record).spec_changes() == []
