"""What a killed runner leaves is removed by the next; and a runner imports what its submitter does."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from loader.storage.disk.scratch import remove_left_folders
from penstock.compute.cluster import Cluster
from penstock.compute.engines.local_engine import LocalEngine
from penstock.compute.engines.slurm import element_script
from penstock.compute.submit import submit_job
from penstock.compute.work import source_hash
from tests.compute.job_checks import REPOSITORY, done_by, job_in, numbers, told_of
from tests.refusals import refusal
from tests.servers.patience import until
from tests.servers.processes import python

LOCAL = Cluster(engine="local", packages=("tests",))


def runner_of(there, environment) -> "subprocess.Popen[bytes]":
    """A runner as an engine begins it, which ends with nobody."""
    command = LOCAL.runner(there.folder, 1, there.description.sha256)
    return subprocess.Popen(
        [*command, "--element", "0", "--elements", "1"],
        env=environment,
        cwd=REPOSITORY,
        start_new_session=True,
    )


def lives(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def begun(folder: Path) -> list[int]:
    """Return the processes that have begun a unit; a file without a line is still being written."""
    texts = [path.read_text() for path in folder.glob("begun-*")]
    return [int(text) for text in texts if text]


def test_scratch_of_a_killed_runner_is_removed_by_the_next_runner(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)]))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONPATH", path)
    job = job_in(tmp_path / "jobs")
    there = submit_job(job, numbers(4, where=str(tmp_path), seconds=60))
    runner = runner_of(there, dict(os.environ))
    until(lambda: begun(tmp_path), process=runner)
    kinds = {"penstock-block", "penstock-worker"}
    held = set(temporary.glob("penstock-*"))
    assert {"-".join(one.name.split("-")[:2]) for one in held} >= kinds
    assert remove_left_folders(str(temporary)) == 0, "they are a living runner's"
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    workers = begun(tmp_path)
    until(lambda: not any(map(lives, workers)))
    assert held <= set(temporary.glob("penstock-*")), "SIGKILL leaves them"
    next_job = submit_job(replace(job, fingerprint="next"), numbers(2))
    assert runner_of(next_job, dict(os.environ)).wait() == 0
    assert list(temporary.glob("penstock-*")) == []


def test_hash_of_the_code_is_the_same_in_every_folder(tmp_path):
    """Packages that a work cannot import count for nothing, though `python -m` finds them in the checkout."""
    work = "penstock.upkeep.verify.shards_job:READ_SHARDS"
    paths = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    script = f"from penstock.compute.work import source_hash; print(source_hash({work!r}))"
    told = {
        python(*safe, "-c", script, check=True, cwd=folder, env=environment).stdout
        for folder in (tmp_path, REPOSITORY)
        for safe in ((), ("-P",))
        for environment in (paths, {name: value for name, value in paths.items() if name != "PYTHONPATH"})
    }
    assert told == {source_hash(work) + "\n"}
    assert source_hash("assets.ingest.cut_work:CUT") != source_hash(work)


@pytest.mark.parametrize("inside", [True, False])
def test_verify_with_the_local_engine_runs_in_every_folder(tmp_path, inside):
    """The command has no folder on its path; `python -m`, as a runner begins, has the current one."""
    script = """
import sys
import loader
root = loader.Root(sys.argv[1])
with root.write("d") as writer:
    writer.add("k", {"cls": 1})
from penstock.cli import main
sys.exit(main(["verify", "d", "--full", "--cluster", sys.argv[2], "--root", sys.argv[1]]))
"""
    file = tmp_path / "local.toml"
    file.write_text('engine = "local"\n[slot]\ncpus = 1\n')
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = python(
        "-P", "-c", script, tmp_path / "root", file, cwd=REPOSITORY if inside else tmp_path, env=environment
    )
    assert (ran.returncode, ran.stdout.endswith("nothing wrong\n")) == (0, True), ran.stderr


def test_runner_imports_nothing_from_the_folder_that_it_runs_in(tmp_path, monkeypatch):
    """Anybody may write to /tmp, where Slurm begins it."""
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "json.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(trap)
    assert told_of(done_by(job_in(tmp_path), numbers(2), LOCAL)) == [0, 1]
    script = element_script(
        [sys.executable, "-m", "json.tool", "--help"], environment="", first=0, elements=1
    ).replace("--element", "--indent")
    subprocess.run(["sh", "-c", script], env={**os.environ, "SLURM_ARRAY_TASK_ID": "0"}, capture_output=True)
    assert not (tmp_path / "sprung").exists()


def test_folder_of_local_runners_is_no_link(tmp_path, monkeypatch):
    from loader.errors import EngineUnreachable

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / f"penstock-runners-{os.getuid()}").symlink_to(other)
    with refusal(EngineUnreachable, what="owner", where=tmp_path / f"penstock-runners-{os.getuid()}"):
        LocalEngine().submit("pk-1", [sys.executable, "-c", ""], 1)
    assert list(other.iterdir()) == []


def test_files_of_runners_whose_process_was_killed_go_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"penstock-runners-{os.getuid()}"
    folder.mkdir(mode=0o700)
    names = ["old", "young", "living", "ahead"]
    for name in names:
        for kind in ("lock", "log"):
            (folder / f"{name}.{kind}").write_text("1")
    for name in ("old", "living"):
        os.utime(folder / f"{name}.lock", (0, 0))
    ahead_s = time.time() + 2 * 86_400  # from before the clock was set back
    os.utime(folder / "ahead.lock", (ahead_s, ahead_s))
    engine = LocalEngine()
    with (folder / "living.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engine.submit("new", [sys.executable, "-c", ""], 1)
        found = {path.stem for path in folder.iterdir()}
    engine.close()
    assert found == {"young", "living", "new"}
