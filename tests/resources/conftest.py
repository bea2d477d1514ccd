"""The functions that workers run, and processes seen from outside."""

import importlib
import os
import sys
from pathlib import Path

import pytest

_UNITS = Path(__file__).parent / "units"


@pytest.fixture(scope="session")
def units():
    """The module of work functions; workers find it as they find any: on sys.path."""
    sys.path.insert(0, str(_UNITS))
    yield importlib.import_module("compute_units")
    sys.path.remove(str(_UNITS))


@pytest.fixture
def children():
    """A function: the numbers of this process's children, those that nobody waited for included."""

    def numbers() -> set[int]:
        found = set()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path("/proc", entry, "stat").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                    found.add(int(entry))
        return found

    return numbers


@pytest.fixture
def fifo(tmp_path):
    """The path of a FIFO: who reads it sees its end when every process that holds it is gone."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)
