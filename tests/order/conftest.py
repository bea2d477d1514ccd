"""Modules that several test files share."""

import pytest


@pytest.fixture(scope="session")
def reference(shared):
    """The order in plain Python integers."""
    return shared("order/reference")


@pytest.fixture(scope="session")
def properties(shared):
    """What must hold, as functions that raise AssertionError."""
    return shared("order/properties")


@pytest.fixture(scope="session")
def regenerate(shared):
    """The script that writes the golden file."""
    return shared("order/golden/regenerate")
