"""Temporary folders of processes that were killed are removed by the next one; those of living ones stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from loader.storage.disk import scratch
from loader.storage.disk.scratch import HeldFolder, remove_left_folders, scratch_file, scratch_folder

HOLDER = """
import sys, time
from loader.storage.disk.scratch import HeldFolder
folder = HeldFolder("test", sys.argv[1])
(folder.path / "data").write_bytes(b"x" * 100)
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """begin() -> (a process that holds a folder in tmp_path, the folder)."""
    begun = []

    def begin():
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process, Path(process.stdout.readline().strip())

    yield begin
    for process in begun:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_folder_of_a_killed_process_is_removed_by_the_next_one(tmp_path, holder, monkeypatch):
    process, left = holder()
    living, held = holder()
    kill(process)
    assert (left / "data").exists(), "SIGKILL leaves it"
    monkeypatch.setattr(scratch, "_cleared", set())
    with scratch_folder("next", str(tmp_path)) as own:
        assert not left.exists()
        assert (held / "data").exists()
        assert own.exists()
    assert living.poll() is None
    assert list(tmp_path.iterdir()) == [held]


def test_folder_that_a_child_inherited_stays_until_the_child_ends(tmp_path):
    folder = HeldFolder("test", str(tmp_path))
    child = subprocess.Popen(["sleep", "600"], pass_fds=[folder.descriptor])
    os.close(folder.descriptor)  # as the kernel does for a process that is killed
    try:
        assert remove_left_folders(str(tmp_path)) == 0
        assert folder.path.exists()
    finally:
        kill(child)
    assert remove_left_folders(str(tmp_path)) == 1
    assert not folder.path.exists()
    folder._end.detach()


def test_links_other_names_and_other_users_are_left_alone(tmp_path, monkeypatch):
    place, other = tmp_path / "place", tmp_path / "other"
    place.mkdir()
    other.mkdir()
    (other / "data").write_bytes(b"x")
    suffix = scratch._suffix()
    (place / f"penstock-block-link{suffix}").symlink_to(other)
    (place / f"penstock-block-file{suffix}").write_bytes(b"x")
    (place / "penstock-block-abc").mkdir()  # of a release whose processes hold no lock
    (place / f"other-block-abc{suffix}").mkdir()
    (place / "penstock-block-abc.00000000.held").mkdir()  # of another machine
    before = sorted(place.iterdir())
    assert remove_left_folders(str(place)) == 0
    assert sorted(place.iterdir()) == before
    left = place / f"penstock-block-left{suffix}"
    left.mkdir()
    (left / "link").symlink_to(other)
    (left / "deep").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(scratch.os, "geteuid", lambda: os.getuid() + 1)
        assert remove_left_folders(str(place)) == 0
    assert remove_left_folders(str(place)) == 1
    assert sorted(place.iterdir()) == before
    assert (other / "data").exists(), "a link inside is removed, and not followed"


def test_folder_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    made = []
    true = tempfile.mkdtemp

    def racing(*args, **more):
        path = true(*args, **more)
        made.append(path)
        if len(made) == 1:
            assert remove_left_folders(str(tmp_path)) == 1
        return path

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", racing)
    with scratch_folder("test", str(tmp_path)) as folder:
        assert str(folder) == made[1]
        assert remove_left_folders(str(tmp_path)) == 0
    assert list(tmp_path.iterdir()) == []


def test_file_is_there_until_the_end_and_gone_after_an_error(tmp_path):
    def fail():
        with scratch_file("test", str(tmp_path)) as file:
            file.write(b"abc")
            file.flush()
            assert Path(file.name).read_bytes() == b"abc"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_folder_whose_owner_forgot_it_is_removed(tmp_path):
    folder = HeldFolder("test", str(tmp_path))
    path = folder.path
    del folder
    assert not path.exists()


def test_place_that_is_not_there_is_no_error(tmp_path):
    assert remove_left_folders(str(tmp_path / "nowhere")) == 0
