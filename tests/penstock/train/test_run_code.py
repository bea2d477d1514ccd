"""The code of each start is in the record: commit, files and changes; an edit in mid-run is shown."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import loader
from penstock.cli import main
from penstock.train.code.code_files import code_files, code_root, commit
from penstock.train.code.code_record import CodeRecord, code_of_script
from penstock.train.run_folder import RunFolder

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
    assert "is no code of a start" in capsys.readouterr().out


def test_run_records_its_code(root: str, start: Start) -> None:
    environment = {"PENSTOCK_RUN": "big-7", "PENSTOCK_RECORD": root}
    (rank,) = start(1, "--steps", 10, "--step-s", 0.2, **environment)
    assert rank.status() == 0, rank.text
    folder = RunFolder(loader.Root(root).store, "big-7")
    assert "files " in CodeRecord(folder.store, folder.key("")).lines()[1]
