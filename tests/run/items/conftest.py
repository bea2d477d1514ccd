"""Datasets that worker processes import, and a second implementation of their batches."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def datasets():
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    yield importlib.import_module("own_datasets")
    sys.path.remove(folder)
    del sys.modules["own_datasets"]
