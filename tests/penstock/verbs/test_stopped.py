"""Ctrl-C in verbs that take long: one line, in the words of the command line."""

import glob
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress

import pytest

import loader
from tests.servers.patience import PATIENCE_S, until


def tars(folder):
    """Ten archives of 100 samples of 100 KB."""
    folder.mkdir()
    for number in range(10):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for i in range(100):
                member = tarfile.TarInfo(f"{number}-{i:03d}.bin")
                member.size = 100_000
                tar.addfile(member, io.BytesIO(random.Random(i).randbytes(member.size)))


def lines(folder):
    folder.mkdir()
    for number in range(4):
        rows = (json.dumps({"id": f"{number}-{i}", "text": "x" * 200}) for i in range(20_000))
        (folder / f"{number}.jsonl").write_text("\n".join(rows))


def run(command, moment=None):
    """(Exit status, stderr) of a command. moment: is true of the process at some time, and Ctrl-C is pressed then."""
    program = [sys.executable, "-m", "penstock", *command]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, start_new_session=True) as work:
        if moment is not None:
            until(lambda: moment(work), process=work)
            os.killpg(work.pid, signal.SIGINT)  # a terminal sends it to the workers too
        _, said = work.communicate(timeout=PATIENCE_S)
        return work.returncode, said


STOPPED = (130, "penstock: stopped; run the same command to go on\n")


@pytest.mark.parametrize(
    ("make", "form", "options"),
    [
        (tars, "webdataset", []),
        pytest.param(lines, "jsonl", ["--field", "text"], marks=pytest.mark.nightly),
    ],
)
def test_import_stopped_by_ctrl_c_says_so_in_one_line_and_continues(tmp_path, make, form, options):
    make(tmp_path / "in")
    root = tmp_path / "root"
    command = ["import", form, str(tmp_path / "in"), "d", *options, "--root", str(root)]
    assert run(command, moment=lambda _: any(root.glob("log/*"))) == STOPPED
    assert run(command) == (0, "")
    assert len(loader.Root(root).open("d")) == (1000 if form == "webdataset" else 80_000)


def test_verify_stopped_by_ctrl_c_says_so_in_one_line_and_runs_again(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        for number in range(20_000):
            writer.add(str(number), {"txt": b"x" * 100})
    command = ["verify", "d@1", "--full", "--root", str(tmp_path / "root")]

    def reads_a_shard(work):
        for descriptor in glob.glob(f"/proc/{work.pid}/fd/*"):
            with suppress(FileNotFoundError):  # it was closed meanwhile
                if os.readlink(descriptor).endswith(".tar"):
                    return True
        return False

    assert run(command, moment=reads_a_shard) == STOPPED
    assert run(command) == (0, "")
