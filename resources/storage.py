"""The root and the landing folder as Dagster resources, with addresses from the environment."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

import loader
from loader.dataset.log.state import State
from loader.errors import InvalidStore
from loader.storage import Store, open_store
from loader.storage.spec import holds_secret, is_secret

_LOG_STATES: dict[str, State] = {}
"""URL of a root -> the log state from which a sensor's next tick continues."""


class RootResource(dg.ConfigurableResource[None]):
    """The penstock root that the assets write to."""

    url: str

    @contextmanager
    def opened(self) -> Iterator["loader.Root"]:
        """Yield the open root. An empty location becomes a root.

        Costs three requests, and one per log entry since the last call. Raises: NotARoot; FormatTooNew.
        """
        with self.root() as root:
            root.create()
            earlier = _LOG_STATES.get(root.url)
            if earlier is not None:
                root.log.resume(earlier)
            yield root
            if root.log.known is not None:  # None: nothing has read the log
                _LOG_STATES[root.url] = root.log.known

    def root(self) -> "loader.Root":
        """Return the root without reading it."""
        return loader.Root(self.url)


class LandingResource(dg.ConfigurableResource[None]):
    """Landing folder or URL of raw objects, read-only. Accepts any URL of obstore or fsspec."""

    url: str

    @contextmanager
    def opened(self, url: str = "", options: Mapping[str, str] | None = None) -> Iterator[Store]:
        """Yield the open store, or the store at `url`; both may be `dg.EnvVar`s. Raises: InvalidStore."""
        store = open_place(url or self.url, options or {})
        try:
            yield store
        finally:
            store.close()


def open_place(url: str, options: Mapping[str, str]) -> Store:
    """Open a store whose URL and options may be `dg.EnvVar`s.

    A pickled store holds the names of secret variables, not their values. Raises: InvalidStore.
    """
    values = {name: from_environment(value) for name, value in options.items()}
    store = open_store(from_environment(url), values)
    if any(is_secret(name) for name in options):
        return _StoreFromEnvironment(store, url, options)
    return store


class _StoreFromEnvironment:
    # Another process reopens the store from its own environment.

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
    """Return the value, or the value of its environment variable. Raises: InvalidStore for an unset variable."""
    if not isinstance(value, dg.EnvVar):
        return value
    text = value.get_value()
    if not text:
        raise InvalidStore(
            f"the environment variable {value.env_var_name} is not set, but a source needs it; set it where the "
            "daemon, the code server and the runs start",
            what=value.env_var_name,
        )
    return text


def check_options(what: str, options: Mapping[str, str]) -> None:
    """Raise InvalidStore for a secret option that is not a `dg.EnvVar`. what: the options' owner."""
    plain = [
        name
        for name, value in options.items()
        if not isinstance(value, dg.EnvVar) and holds_secret(name, value)
    ]
    if plain:
        raise InvalidStore(
            f"{what} has the option {', '.join(map(repr, sorted(plain)))} in plain text; keep secrets out of the code "
            'and of Dagster\'s pages: write dg.EnvVar("THE_VARIABLE")',
            what=", ".join(sorted(plain)),
            where=what,
            accepted="dg.EnvVar",
        )
