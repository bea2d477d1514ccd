"""What must hold of a collector."""

import pytest


@pytest.fixture(scope="session")
def properties(shared):
    """properties.py."""
    return shared("penstock/upkeep/gc/properties")
