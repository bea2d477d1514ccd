"""An empty place for a log."""

from uuid import uuid4

import pytest

from loader.storage import open_store


@pytest.fixture
def store():
    return open_store(f"memory://log-{uuid4().hex}/root")
