"""The functions that workers run, and a FIFO that they hold."""

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
def fifo(tmp_path):
    """The path of a FIFO: who reads it sees its end when every process that holds it is gone."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)
