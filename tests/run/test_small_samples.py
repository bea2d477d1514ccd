"""Counts per batch of small samples: system calls, page faults and calls of functions, each in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import loader
from loader import native

PACKAGES = Path(loader.__file__).parents[1]
CHILD = Path(__file__).with_name("small_samples.py")
OVERLAY = """
mkdir lower upper work merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 100
cd merged && exec "$@"
"""
"""Runs a command in a new overlay, as the root of most containers is one."""
NOT_MOUNTED = 100


@pytest.fixture(params=["tmp_path", "tmpfs", "overlay"])
def counts(request, tmp_path):
    """Counts what `small_samples.py` counts, in a folder of a file system of this kind."""

    def run_child(*arguments):
        command = [sys.executable, str(CHILD), ".", *map(str, arguments)]
        if request.param == "tmpfs":
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                return output(command, folder)
        if request.param == "overlay":
            mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", OVERLAY, "sh", *command]
            ran = run(mounted, tmp_path)
            if ran.returncode == 0:
                return json.loads(ran.stdout)
            # A container may not mount one, and has one for its root.
            assert ran.returncode == NOT_MOUNTED or "unshare" in ran.stderr, ran.stderr
        return output(command, tmp_path)

    return run_child


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def output(command, folder):
    ran = run(command, folder)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_samples_are_copied_out_of_maps_without_reads(counts):
    """On tmpfs and overlayfs too, which cannot say what the page cache holds."""
    reads = counts("tokens", "threads", 0)["reads"]
    assert reads < 1 if native.KIND != "Python" else reads > 30


def test_cold_first_batch_reads_little_more_than_its_samples(counts):
    """Neither what the kernel would read ahead nor around them: all is 64 MiB, a batch one of them."""
    assert counts("cold")["read_of_wanted"] < 2


@pytest.mark.parametrize(("executor", "workers"), [("threads", 0), ("processes", 1)])
def test_batches_lie_in_memory_that_is_used_again(executor, workers, tmp_path):
    """A batch of tokens is 64 pages. Threads take a few, until the heap of each has all that it needs."""
    command = [sys.executable, str(CHILD), ".", "tokens", executor, str(workers)]
    assert output(command, tmp_path)["faults"] < 16
