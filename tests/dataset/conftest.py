"""Stores, and processes that write to them at once."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def properties(shared):
    """What must hold of the format, as functions that raise AssertionError."""
    return shared("dataset/properties")


@pytest.fixture(scope="session")
def interrupted(shared):
    """interrupted(root, then): the root, and `then()` is called just before its next commit."""
    return shared("dataset/interrupted").interrupted


@pytest.fixture(scope="session")
def stores(shared):
    """Stores that count what is asked of them, or read another answer into it."""
    return shared("dataset/stores")


@pytest.fixture
def url():
    """The URL of an empty place in memory."""
    return f"memory://dataset-{next(_numbers)}"


@pytest.fixture
def root(url):
    import loader

    return loader.Root(url)


@pytest.fixture(scope="session")
def bucket(s3):
    """(url, options) of a place on S3."""
    return "s3://bucket/dataset", s3


@pytest.fixture(scope="session")
def at_once():
    """at_once("child.py", job, ...) -> [(exit status, what it says)] of processes that do these jobs at once."""
    running = {}

    def do(script, *jobs):
        if script not in running:
            command = [
                sys.executable,
                str(Path(__file__).parent / "forks.py"),
                str(Path(__file__).parent / script),
            ]
            running[script] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        running[script].stdin.write(json.dumps(jobs) + "\n")
        running[script].stdin.flush()
        return [(status, said) for status, said in json.loads(running[script].stdout.readline())]

    yield do
    for process in running.values():
        process.stdin.close()
        assert process.wait() == 0
        process.stdout.close()
