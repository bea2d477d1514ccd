"""The conformance suite of stores.

class TestMyStore(StoreConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return Backend(open=lambda: open_store(f"mine://{tmp_path}"))
"""

from collections.abc import Iterator

import pytest

from ..storage import Store
from .backend import Backend
from .store_reads import StoreReads
from .store_writes import StoreWrites

__all__ = ["Backend", "StoreConformance"]


class StoreConformance(StoreReads, StoreWrites):
    """Every verb and every error of a store.

    A class that extends it has the fixture `backend`, a `Backend` whose place is empty, new for each test.
    """

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Store]:
        """Yield the store, opened."""
        opened = backend.open()
        yield opened
        opened.close()

    @pytest.fixture
    def worker_environment(self) -> None:
        """Give the environment the credentials that a worker finds there: they never travel in a pickle.

        A store without credentials needs none.
        """
