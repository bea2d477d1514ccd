"""Roots to collect."""

import pytest

from tests.penstock.upkeep.gc import properties as roots


@pytest.fixture(scope="session")
def properties():
    """properties.py."""
    return roots
