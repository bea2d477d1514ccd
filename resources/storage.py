"""The root and the landing place, as Dagster resources. Their addresses come from the environment."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

import loader
from loader.storage import Store, open_store


class RootResource(dg.ConfigurableResource[None]):
    """The penstock root that the assets write to."""

    url: str

    @contextmanager
    def opened(self) -> Iterator[loader.Root]:
        """The open root; an empty place becomes one. Raises: NotARoot; FormatTooNew."""
        with loader.Root(self.url) as root:
            root.create()
            yield root


class LandingResource(dg.ConfigurableResource[None]):
    """Where raw objects land: a folder, or any URL that obstore or fsspec opens. Only ever read."""

    url: str

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The open store."""
        store = open_store(self.url)
        try:
            yield store
        finally:
            store.close()
