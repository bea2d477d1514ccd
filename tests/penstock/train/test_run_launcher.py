"""A run is started by one launcher: its record names it, and every other one refuses."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import loader
from loader.errors import Conflict, InvalidSpec
from penstock import cli
from penstock.compute.cluster import read_cluster
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.launch.run_launcher import check_launcher, claim, launcher_name
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.train.submitting import cancel, resume, submit, summary
from tests.refusals import refusal

LOGIN = """\
import re, shlex, sys
mark = (re.findall("[|][0-9a-f]{{16}}[|]", sys.argv[1]) or ["|"])[0]
words = shlex.split(sys.argv[1])
command = next(word for word in words if word in ("sbatch", "squeue", "scancel", "scontrol", "sacctmgr", "sacct", "sh"))
if command == "sbatch":
    sys.stdin.read()
    print(12)
elif command == "scontrol":
    print("ClusterName             = {name}\\nKillWait                = 30 sec")
elif command == "squeue" and {waits}:
    values = ["12", "PENDING", "vision", "ann", "7", "low", "batch", "1", "cpu=1"]
    values += ["N/A"] * (sys.argv[1].count(mark) - len(values))
    print(mark.join(values) + mark)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with loader.Root(tmp_path / "root") as root:
        root.create()
        return RunFolder(root.store, "big-7")


@pytest.fixture
def slurm(folder: RunFolder, tmp_path: Path) -> Callable[[str], SlurmJobs]:
    def slurm(name: str) -> SlurmJobs:
        login, file = tmp_path / f"{name}.py", tmp_path / f"{name}.toml"
        login.write_text(LOGIN.format(name=name, waits=name == "vision"))
        prefix = json.dumps([sys.executable, str(login)])
        file.write_text(f'engine = "slurm"\nsubmit = {prefix}\nlogs = "{tmp_path}"\n')
        return SlurmJobs(folder.store.url, read_cluster(file))

    return slurm


@pytest.fixture
def local(folder: RunFolder) -> Iterator[LocalRuns]:
    local = LocalRuns(folder.store.url)
    yield local
    local.cancel("big-7")
    for process in local._begun:
        process.wait()


def spec(folder: RunFolder) -> RunSpec:
    return RunSpec(run="big-7", command=("sleep", "1000"), record=folder.store.url)


def test_run_of_a_cluster_is_not_started_here(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs], local: LocalRuns
) -> None:
    run = spec(folder)
    submit(run, slurm("vision"))
    assert submit(run, slurm("vision")).startswith("Slurm job 12")
    assert launcher_name(folder) == "Slurm cluster vision"
    for other in (local, slurm("speech")):
        for start in (submit, resume):
            with pytest.raises(
                Conflict, match=r"submitted to Slurm cluster vision.*pass --cluster FILE.*--moved"
            ):
                start(run, other)
        with refusal(
            Conflict, what="launcher", where="big-7", given=other.name(), accepted="Slurm cluster vision"
        ):
            cancel(folder, other)
    assert not folder.is_to_stop(), "a cancel that is refused leaves no request"
    assert local.status("big-7").state == "unknown"
    status = summary(folder, local).status
    assert (status.state, status.place) == ("unknown", "submitted to Slurm cluster vision")


def test_verbs_name_the_launcher_that_they_were_not_given(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(spec(folder), slurm("vision"))
    file = tmp_path / "run.toml"
    file.write_text(f'run = "big-7"\ncommand = ["sleep", "1000"]\nrecord = "{folder.store.url}"\n')
    root = ["--root", folder.store.url]
    for words in (
        ["submit", str(file)],
        ["resume", str(file)],
        *(["why", "big-7"], ["logs", "big-7"], ["cancel", "big-7"]),
    ):
        more = [] if str(file) in words else root
        assert cli.main(["train", *words, *more]) != 0
        assert "submitted to Slurm cluster vision" in capsys.readouterr().err
    assert cli.main(["train", "show", "big-7", *root]) == 0
    assert "submitted to Slurm cluster vision; ask there" in capsys.readouterr().out


def test_run_that_moved_is_started_by_the_new_launcher(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs]
) -> None:
    run = spec(folder)
    submit(run, slurm("vision"))
    submit(run, slurm("speech"), moved=True)
    assert launcher_name(folder) == "Slurm cluster speech"
    with refusal(
        Conflict,
        what="launcher",
        given="Slurm cluster vision",
        accepted="Slurm cluster speech",
        within="big-7",
    ):
        submit(run, slurm("vision"))


def test_start_of_an_earlier_release_names_its_kind_of_launcher(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs], local: LocalRuns
) -> None:
    folder.begin_attempt({"launcher": "slurm 8123", "node": "m1", "ranks": 1, "restarts": 0})
    with refusal(Conflict, what="launcher", given=local.name(), accepted="Slurm", within="big-7"):
        submit(spec(folder), local)
    assert folder.read_spec() is None
    submit(spec(folder), slurm("vision"))
    assert launcher_name(folder) == "Slurm cluster vision"


@pytest.mark.server
def test_run_that_ended_on_this_machine_may_go_to_a_cluster(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs], local: LocalRuns
) -> None:
    submit(spec(folder), local)
    with pytest.raises(Conflict, match=r"submitted to machine .* run this command there"):
        submit(spec(folder), slurm("vision"))
    local.cancel("big-7")
    submit(spec(folder), slurm("vision"))
    assert launcher_name(folder) == "Slurm cluster vision"


class Refusing:
    def name(self) -> str:
        return "machine m1"

    def submit(self, spec: RunSpec) -> str:
        raise InvalidSpec("no such nodes")


def test_launcher_that_refuses_a_run_is_not_recorded(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs]
) -> None:
    with pytest.raises(InvalidSpec):
        submit(spec(folder), Refusing())  # type: ignore[arg-type]
    assert launcher_name(folder) == ""
    submit(spec(folder), slurm("vision"))
    with pytest.raises(InvalidSpec):
        submit(spec(folder), Refusing(), moved=True)  # type: ignore[arg-type]
    assert launcher_name(folder) == "Slurm cluster vision"


def test_of_two_launchers_at_one_moment_one_goes_on(
    folder: RunFolder, slurm: Callable[[str], SlurmJobs]
) -> None:
    launchers = [slurm(name) for name in ("vision", "speech", "robots")]
    together = threading.Barrier(len(launchers))
    refused = list[Conflict]()

    def start(launcher: SlurmJobs) -> None:
        together.wait()
        try:
            claim(folder, launcher)
        except Conflict as error:
            refused.append(error)

    threads = [threading.Thread(target=start, args=(launcher,)) for launcher in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 2
    (first,) = [launcher for launcher in launchers if launcher.name() == launcher_name(folder)]
    check_launcher(folder, first)
