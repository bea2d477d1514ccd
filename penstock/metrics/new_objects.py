"""List the objects of a folder that no earlier listing had, at the cost of the new ones.

Keys of a folder rise with time, but a late or repeated one may lie some keys before the newest. So a listing begins 64
keys before it; as long as all keys fit into one page of a bucket's listing, it lists all.
"""

from collections.abc import Iterable
from itertools import islice

from loader.storage import ObjectInfo, Store
from loader.storage.store import list_from

PAGE = 1000
"""Keys in one answer of a bucket."""
LATE_KEYS = 64
"""Keys before the newest one that are listed again."""
MOST_LISTED = 100_000
"""Keys of one listing; a forged folder may have more."""


class NewObjects:
    """New objects of one folder.

    prefix: first characters of the keys. since: key to begin with; "" for the first.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        since: str = "",
    ) -> None:
        self.prefix = prefix
        self._store = store
        self._since = since
        self._tokens: dict[str, str] = {}
        self.is_long = False
        """True if the folder has more keys than a page."""

    def is_new(self, info: ObjectInfo) -> bool:
        """Return whether a listed object is none of the known ones."""
        return self._tokens.get(info.key) != info.etag

    def add_known(self, infos: Iterable[ObjectInfo]) -> None:
        """Count objects of another listing as known."""
        for info in infos:
            if info.key.startswith(self.prefix):
                self._tokens[info.key] = info.etag
        if len(self._tokens) > PAGE:
            self._forget()

    def new(self, *, lists_all: bool = False) -> list[ObjectInfo]:
        """Return the objects that are new or were replaced since the last call, in key order. Raises: StoreError.

        lists_all: begin with the first key. Costs a request, and another one for each further page.
        """
        since = self._since
        if self.is_long and not lists_all:
            since = self._late_key()
        infos = self._listed(since)
        # A known object with another token was replaced, as after a repair.
        new = [info for info in infos if self.is_new(info)]
        self.add_known(new)
        return new

    def _listed(self, since: str) -> list[ObjectInfo]:
        first = since or self.prefix
        infos = list_from(
            self._store,
            self.prefix,
            first,
        )
        bounded = islice(infos, MOST_LISTED)
        return list(bounded)

    def _late_key(self) -> str:
        keys = sorted(self._tokens)
        newest = keys[-LATE_KEYS:]
        return newest[0]

    def _forget(self) -> None:
        # The next listing begins after the forgotten keys. Memory: a page of keys for each folder.
        self.is_long = True
        keys = sorted(self._tokens)
        newest = keys[-PAGE // 2 :]
        self._tokens = {key: self._tokens[key] for key in newest}
