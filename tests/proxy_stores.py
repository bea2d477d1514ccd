"""Stores that are another one, but for what a test sees of their requests or does itself."""

from collections.abc import Callable
from functools import partial
from typing import Any


class ProxyStore:
    """A store of which `verbs` take the place of its own; each gets the store first."""

    def __init__(self, store: Any, **verbs: Callable[..., Any]) -> None:
        self.store = store
        self.__dict__.update({name: partial(verb, store) for name, verb in verbs.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class ObservedStore(ProxyStore):
    """A store that keeps (verb, key) of each request in `calls`, and calls `before(verb, key)` first."""

    def __init__(self, store: Any, before: Callable[[str, str], object] = lambda verb, key: None) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []
        self._before = before

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if not callable(verb) or name.startswith("_"):
            return verb

        def call(*args: Any, **options: Any) -> Any:
            key = args[0] if args and isinstance(args[0], str) else ""
            self._before(name, key)
            self.calls.append((name, key))
            return verb(*args, **options)

        return call
