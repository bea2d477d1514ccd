"""The code of each start is in the record: commit, files and changes; an edit in mid-run is shown."""

import hashlib
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import loader
from loader.errors import Corrupt, InvalidSpec
from penstock.cli import main
from penstock.train.code.code_files import code_files, code_root, commit
from penstock.train.code.code_record import CodeRecord, code_of_script
from penstock.train.code.snapshot import pack, put_snapshot, rank_command, unpack, with_code
from penstock.train.launch.local_runs import LocalRuns
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import read_spec
from penstock.train.submitting import submit
from tests.refusals import refusal
from tests.servers.patience import until

Start = Callable[..., list]  # type: ignore[type-arg]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    with loader.Root(tmp_path / "root") as root:
        root.create()
    return RunFolder(loader.Root(tmp_path / "root").store, "big-7")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, as the folder of the running script."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "train.py").write_text("lr = 1\n")
    (project / ".gitignore").write_text("data/\n*.log\n")
    (project / "data" / "a.bin").write_bytes(b"x")
    (project / "run.log").write_text("ignored")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        identity = ["-c", "user.name=ann", "-c", "user.email=ann@lab.example"]
        subprocess.run(["git", "-C", str(project), *identity, *words], check=True, env=git_environment())
    monkeypatch.setattr("penstock.train.code.code_record.script_folder", lambda: project)
    return project


def git_environment() -> dict[str, str]:
    """Return an environment without variables by which a hook of git names its own repository."""
    return {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}


def put(folder: RunFolder) -> int:
    attempt = folder.begin_attempt({"node": "m1", "ranks": 1, "restarts": 0})
    code = code_of_script()
    assert code is not None
    CodeRecord(folder.store, folder.key("")).put(attempt, code)
    return attempt


def test_files_are_those_that_git_does_not_ignore(project: Path) -> None:
    (project / "new.py").write_text("x = 1\n")
    (project / "large.py").write_bytes(b"#" * (2**20 + 1))
    digest = hashlib.sha256(b"lr = 1\n").hexdigest()
    files = code_files(code_root(project / "data"))
    assert sorted(files) == [".gitignore", "new.py", "train.py"]
    assert files["train.py"] == digest


def test_folder_without_git_has_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / ".venv").mkdir()
    for name in ("train.py", "__pycache__/train.pyc", ".venv/x.py"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.py").symlink_to(tmp_path / "train.py")
    assert sorted(code_files(tmp_path)) == ["train.py"]
    assert commit(tmp_path) == ""


@pytest.mark.parametrize("with_git", [True, False])
def test_objects_of_a_root_are_no_code(tmp_path: Path, with_git: bool) -> None:
    if with_git:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with loader.Root(str(tmp_path / "data")) as root, root.write("points") as writer:
        writer.add("0", {"x.json": b"{}"})
    for name in ("train.py", "data/prepare.py"):
        (tmp_path / name).write_text("x")
    assert sorted(code_files(tmp_path)) == ["data/prepare.py", "train.py"]


def test_folder_of_very_many_files_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.train.code.code_files.MOST_FILES", 2)
    for number in range(3):
        (tmp_path / f"{number}.py").write_text("x")
    assert code_files(tmp_path) == {}


def test_edit_between_two_starts_and_since_is_shown(
    folder: RunFolder, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder)
    (project / "train.py").write_text("lr = 2 # https://ann:hunter2@lab.example/x\n")
    put(folder)
    lines = CodeRecord(folder.store, folder.key("")).lines()
    head = commit(project).removesuffix("-dirty")
    assert lines[1].startswith(f"commit {head}, files ")
    assert f"commit {head}-dirty" in lines[2]
    assert lines[2].endswith("; changed: train.py"), "the test stands elsewhere"
    monkeypatch.chdir(project)
    assert CodeRecord(folder.store, folder.key("")).lines() == lines
    (project / "train.py").write_text("lr = 3\n")
    assert CodeRecord(folder.store, folder.key("")).lines()[2].endswith("; edited since: train.py")
    (diff,) = [info.key for info in folder.store.list(folder.key("code/")) if info.key.endswith(".diff")]
    text = folder.store.get(diff).data.decode()
    assert "+lr = 2" in text
    assert "hunter2" not in text
    assert main(["train", "show", "big-7", "--root", folder.store.url]) == 0
    assert "  code: commit " in capsys.readouterr().out


def test_forged_code_hides_no_run_and_opens_no_file(
    folder: RunFolder, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = put(folder)
    secret = project.parent / "secret"
    secret.write_text("s")
    os.mkfifo(project.parent / "pipe")
    names = ["../secret", "../pipe", str(secret), "train.py"]
    files = {"format": 1, "files": dict.fromkeys(names, hashlib.sha256(b"s").hexdigest())}
    body = {"format": 1, "commit": "x\nforged", "folder": str(project), "sha256": "0" * 64}
    key = folder.key(f"code/{attempt:06d}.json")
    folder.store.put(key, json.dumps(body).encode())
    folder.store.put(folder.key(f"code/{'0' * 64}.files.json"), json.dumps(files).encode())
    monkeypatch.chdir(project)
    assert main(["train", "show", "big-7", "--root", folder.store.url]) == 0
    text = capsys.readouterr().out
    assert "commit x\\nforged" in text
    folder.store.put(key, b"{")
    assert main(["train", "show", "big-7", "--root", folder.store.url]) == 0
    assert "is not a valid code of a start" in capsys.readouterr().out


def test_run_records_its_code(root: str, start: Start) -> None:
    environment = {"PENSTOCK_RUN": "big-7", "PENSTOCK_RECORD": root}
    (rank,) = start(1, "--steps", 10, "--step-s", 0.2, **environment)
    assert rank.status() == 0, rank.text
    folder = RunFolder(loader.Root(root).store, "big-7")
    assert "files " in CodeRecord(folder.store, folder.key("")).lines()[1]


def test_copy_has_equal_bytes_and_no_ignored_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "link.py").symlink_to("train.py")
    data = pack(project)
    os.utime(project / "train.py", (1, 1))
    assert pack(project) == data
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert sorted(archive.getnames()) == [".gitignore", "link.py", "train.py"]
    (project / "out.py").symlink_to("/etc/hostname")
    with refusal(InvalidSpec, what="--snapshot", given="out.py", accepted="a file of the folder"):
        pack(project)
    (project / "out.py").unlink()
    monkeypatch.setattr("penstock.train.code.snapshot.MOST_BYTES", 10)
    with refusal(InvalidSpec, what="--snapshot", given=".gitignore", accepted=[5000, 10]):
        pack(project)


def test_replaced_copy_starts_nothing(
    folder: RunFolder, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sha256 = put_snapshot(folder.store, "big-7", pack(project))
    key = folder.key(f"code/{sha256}.tar.gz")
    (project / "train.py").write_text("forged\n")
    whole = folder.store.get(key).data
    folder.store.put(key, pack(project))
    with refusal(Corrupt, what="SHA-256"):
        unpack(folder.store, "big-7", sha256)
    folder.store.put(key, whole)
    where = unpack(folder.store, "big-7", sha256)
    assert (where / "train.py").read_text() == "lr = 1\n"
    assert unpack(folder.store, "big-7", sha256) == where


@pytest.mark.server
def test_run_starts_from_its_copy_after_an_edit(
    folder: RunFolder,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A second submit without the option keeps the copy, and an edit of the folder reaches no start."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(project)
    (project / "train.py").write_text("import os\nprint('lr = 1', os.environ['PENSTOCK_RECORD'])\n")
    file = tmp_path / "run.toml"
    command = json.dumps([sys.executable, "train.py"])
    file.write_text(f'run = "big-7"\ncommand = {command}\nrecord = "../root"\n')
    assert main(["train", "submit", str(file), "--snapshot", "--dry-run"]) == 0
    assert "penstock.train.code.snapshot" in capsys.readouterr().out
    assert [*folder.store.list("trainings/")] == [], "--dry-run stores nothing"
    launcher = LocalRuns(folder.store.url)
    for copied in (project, None):
        submit(with_code(read_spec(file), copied, stored=True), launcher)
        until(lambda: launcher.status("big-7").state == "ended", lambda: launcher.logs("big-7"))
        (project / "train.py").write_text("print('lr = 2')\n")
    for process in launcher._begun:
        process.wait()
    assert launcher.logs("big-7").count(f"lr = 1 {folder.store.url}") == 2
    assert "lr = 2" not in launcher.logs("big-7")
    spec = folder.spec()
    assert folder.spec_changes() == []
    assert shlex.join(rank_command(spec, "python")).endswith(
        f"big-7 {spec.snapshot} {sys.executable} train.py"
    )
