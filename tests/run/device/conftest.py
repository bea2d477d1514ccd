"""Fixtures of batches on a device."""

import pytest


@pytest.fixture(scope="session")
def delayed_copies(shared):
    return shared("run/device/delayed").DelayedCopies
