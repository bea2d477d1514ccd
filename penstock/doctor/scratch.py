"""A prefix of the store that is one examination's own."""

import secrets

from loader.dataset.marker import PROBES
from loader.storage import Store


class Scratch:
    """Names keys below a fresh prefix, and deletes them all at the end.

    The prefix is one that may lie beside a root before it is made, so that a doctor who was killed keeps nobody from
    making one there.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix = f"{PROBES}{secrets.token_hex(8)}/"
        self._given: set[str] = set()

    def key(self, name: str) -> str:
        """The key of a probe's object."""
        key = self.prefix + name
        self._given.add(key)
        return key

    def remove(self) -> None:
        """Delete what was made, also what a listing does not show. Raises: StoreError."""
        self.store.delete_many(sorted(self._given))
