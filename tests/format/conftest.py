"""Loads the script that the golden file comes from."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def regenerate():
    """The script that writes the golden file."""
    full = "penstock_format_tests_regenerate"
    if full not in sys.modules:
        path = Path(__file__).parent / "golden" / "regenerate.py"
        spec = importlib.util.spec_from_file_location(full, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]
