"""Pages with their plots."""

import pytest


@pytest.fixture(autouse=True)
def plots_are_blank() -> None:
    """Plots are drawn here."""
