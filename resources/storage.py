"""The root and the landing place, as Dagster resources. Their addresses come from the environment."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

import loader
from loader.dataset.log.state import State
from loader.errors import InvalidStore
from loader.storage import Store, open_store
from loader.storage.spec import holds_secret, is_secret

_READ: dict[str, State] = {}
"""URL of a root -> its history as this process has read it. A tick of a sensor reads on from there."""


class RootResource(dg.ConfigurableResource[None]):
    """The penstock root that the assets write to."""

    url: str

    @contextmanager
    def opened(self) -> Iterator["loader.Root"]:
        """Yield the open root; an empty place becomes one.

        Costs three requests, and one per entry of the log that came since this process opened it last. The first time
        it costs those of `Log`. Raises: NotARoot; FormatTooNew.
        """
        with self.root() as root:
            root.create()
            if (read := _READ.get(root.url)) is not None:
                root.log.resume(read)
            yield root
            if (known := root.log.known) is not None:
                _READ[root.url] = known

    def root(self) -> "loader.Root":
        """Return the root, of which nothing is read yet."""
        return loader.Root(self.url)


class LandingResource(dg.ConfigurableResource[None]):
    """Landing place of raw objects: a folder, or any URL that obstore or fsspec opens. Only ever read."""

    url: str

    @contextmanager
    def opened(self, url: str = "", options: Mapping[str, str] | None = None) -> Iterator[Store]:
        """Yield the open store; of another place where `url` names one. Either may hold `dg.EnvVar`s.

        Raises: InvalidStore, also for a variable that is not set.
        """
        store = open_place(url or self.url, options or {})
        try:
            yield store
        finally:
            store.close()


def open_place(url: str, options: Mapping[str, str]) -> Store:
    """Open a store whose URL and options may be `dg.EnvVar`s.

    Pickled, it takes the names of the variables along, not their values. Raises: InvalidStore.
    """
    found = {name: from_environment(value) for name, value in options.items()}
    store = open_store(from_environment(url), found)
    if any(is_secret(name) for name in options):
        return _Place(store, url, options)
    return store


class _Place:
    """A store with secrets out of the environment. Another process has these variables too, and opens it anew."""

    def __init__(self, store: Store, url: str, options: Mapping[str, str]) -> None:
        self._store, self._how = store, (url, dict(options))
        self.variables = tuple(
            value.env_var_name for value in (url, *options.values()) if isinstance(value, dg.EnvVar)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __reduce__(self) -> tuple[object, ...]:
        return open_place, self._how

    def __repr__(self) -> str:
        return repr(self._store)


def from_environment(value: str) -> str:
    """Return the value, or that of its variable. Raises: InvalidStore where the variable is not set."""
    if not isinstance(value, dg.EnvVar):
        return value
    found = value.get_value()
    if not found:
        raise InvalidStore(
            f"the environment variable {value.env_var_name} is not set, and a place that objects land in needs it; "
            "set it where the daemon, the code server and the runs start"
        )
    return found


def check_options(what: str, options: Mapping[str, str]) -> None:
    """Check that no secret is written down instead of being a `dg.EnvVar`. Raises: InvalidStore."""
    plain = [
        name
        for name, value in options.items()
        if not isinstance(value, dg.EnvVar) and holds_secret(name, value)
    ]
    if plain:
        raise InvalidStore(
            f"{what} has the option {', '.join(map(repr, sorted(plain)))} in plain text; secrets stay out of the code "
            'and of Dagster\'s pages: write dg.EnvVar("THE_VARIABLE")'
        )
