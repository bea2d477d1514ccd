"""Stores, and processes that write to them at once."""

import contextlib
import itertools
from pathlib import Path

import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def properties(shared):
    """What must hold of the format, as functions that raise AssertionError."""
    return shared("dataset/properties")


@pytest.fixture(scope="session")
def interrupt_commit(shared):
    """interrupt_commit(root, then): the root, and `then()` is called just before its next commit."""
    return shared("dataset/interrupted").interrupt_store


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
def at_once(shared):
    """at_once("child.py", job, ...) -> [(exit status, what it says)] of processes that do these jobs at once."""
    running = {}
    with contextlib.ExitStack() as stack:

        def do(script, *jobs):
            if script not in running:
                path = str(Path(__file__).parent / script)
                running[script] = stack.enter_context(shared("dataset/forks").processes(path))
            return [(status, said) for status, said in running[script](*jobs)]

        yield do
