"""Loads the modules that several test files share (test modules cannot import one another)."""

import importlib.util
import sys
from pathlib import Path

import pytest


def _load(name):
    full = "penstock_order_tests_" + name.replace("/", "_")
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(scope="session")
def reference():
    """The order in plain Python integers."""
    return _load("reference")


@pytest.fixture(scope="session")
def properties():
    """What must hold, as functions that raise AssertionError."""
    return _load("properties")


@pytest.fixture(scope="session")
def regenerate():
    """The script that writes the golden file."""
    return _load("golden/regenerate")
