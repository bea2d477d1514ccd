"""Compare the numbers of files, episodes, samples and messages that a source states with its objects.

Formats report what is missing here. The command decides whether that is an error or goes into the version's record.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from loader.dataset.columnar.shard_names import missing_shards
from loader.errors import Corrupt, ObjectNotFound
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.storage import Store

MOST_NAMED = 20
"""Most missing things that are named; the rest are counted."""
WAY_OUT = "fetch what is missing, or take what is there with --allow-missing"


class MissingItem(NamedTuple):
    text: str
    """Names the missing thing, and the file that states it."""
    key: str
    """Key of the missing object; "" if it is not an object."""
    n: int = 1
    """Number of missing things."""


class StatedCounts:
    """Counts that one source states, and the things it lacks. Thread-safe."""

    def __init__(self, allowed: bool = False) -> None:
        """Start with nothing missing. allowed: as for `allow`."""
        self._lock = threading.Lock()
        self._items = dict[MissingItem, None]()
        self._save: Callable[[bytes], None] | None = None
        self.is_allowed = allowed
        """True if readers record what is missing; False if they raise."""

    def allow(self) -> None:
        """Let readers record what is missing from now on."""
        self.is_allowed = True

    def lacks(self, text: str, key: str = "") -> None:
        """Record something missing. key: of a missing object, which patterns may have left out."""
        with self._lock:
            self._items[MissingItem(text, key)] = None

    def compare(self, what: str, noun: str, stated: int, n_there: int, names: str = "") -> None:
        """Compare a stated number with the number there; more than stated is accepted.

        what: what states the number, and of what. noun: plural. names: which are missing, or "".
        Raises: Corrupt if some are missing, unless that is allowed.
        """
        # Files that were added later are not loss.
        if n_there >= stated:
            return
        text = f"{what} states {stated:,} {noun}, and {n_there:,} are there"
        if names:
            text += f": {names} missing"
        self.report(text, what=noun, where=what.removesuffix(","), given=n_there, accepted=stated)

    def report(self, text: str, **fields: object) -> None:
        """Record what a reader misses. fields: of the error. Raises: Corrupt, unless that is allowed."""
        if not self.is_allowed:
            raise Corrupt(f"{text}; {WAY_OUT}", **fields)
        self.lacks(text)
        if self._save is not None:
            with self._lock:
                items = [list(one) for one in self._items]
                self._save(
                    canonical_json({"missing": items})
                )  # an object, as a proof reads each JSON of `data/`

    def store_counts(self, store: Store, key: str) -> None:
        """Take what an earlier, killed run of the same import recorded, and store what readers report from now on.

        A repeated import does not read again what is already written, so it would not miss anything there.
        """
        with suppress(ObjectNotFound, DamagedJson, KeyError, TypeError, ValueError):
            for text, missing_key, n in parse_json_object(store.get(key).data)["missing"]:
                self._items[MissingItem(str(text), str(missing_key), int(n))] = None

        def save(data: bytes) -> None:
            store.put(key, data)

        self._save = save

    def add_shards(self, url: str, keys: Iterable[str], is_left_out: Callable[[str], Any]) -> None:
        """Record the files that names such as a-00000-of-00005.parquet state and that are not among `keys`."""
        n_more = 0
        for number, name in enumerate(missing_shards(keys, is_left_out)):
            if number < MOST_NAMED:
                self.lacks(f"{url} has no {name}, which the names of its other files state", name)
            else:
                n_more += 1
        if n_more:
            with self._lock:
                item = MissingItem(f"{url} lacks {n_more:,} more files that names state", "", n_more)
                self._items[item] = None

    def settle(self, url: str, keys: Iterable[str], is_left_out: Callable[[str], Any]) -> None:
        """Add what names of objects state, and forget missing objects that were left out on purpose.

        keys: objects whose names may state a number of files.
        """
        self.add_shards(url, keys, is_left_out)
        self.leave_out(is_left_out)

    def leave_out(self, is_left_out: Callable[[str], Any]) -> None:
        """Forget missing objects that were left out on purpose."""
        with self._lock:
            self._items = {one: None for one in self._items if not (one.key and is_left_out(one.key))}

    def refuse(self) -> None:
        """Raise Corrupt if something is missing: it names the first `MOST_NAMED`."""
        if self.n:
            with self._lock:
                missing = [item.key or item.text for item in sorted(self._items)]
            raise Corrupt(f"{'; '.join(self.lines())}; {WAY_OUT}", what=missing[:MOST_NAMED], given=self.n)

    @property
    def n(self) -> int:
        """Number of missing things."""
        with self._lock:
            return sum(one.n for one in self._items)

    def lines(self) -> list[str]:
        """Return a line for each of the first `MOST_NAMED` things missing, and one with the number of the others."""
        with self._lock:
            items = sorted(self._items)  # readers report in any order
        lines = [one.text for one in items[:MOST_NAMED]]
        if len(items) > MOST_NAMED:
            lines.append(f"... and {len(items) - MOST_NAMED:,} more")
        return lines

    def to_json(self, url: str) -> dict[str, Any]:
        """Return the version's record of what is missing; {} if nothing is.

        url: of the source, which the record leaves out: the version's id does not depend on where a copy lies.
        """
        if not self.n:
            return {}
        lines = [text.replace(f"{url}/", "").replace(url, "the source") for text in self.lines()]
        return {"missing": {"n": self.n, "first": lines}}
