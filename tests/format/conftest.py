"""The script that the golden file comes from."""

import pytest


@pytest.fixture(scope="session")
def regenerate(shared):
    """The script that writes the golden file."""
    return shared("format/golden/regenerate")
