"""Skip what a takedown denies: objects before they are read, and samples before their bytes are copied."""

from collections.abc import Mapping
from dataclasses import replace

from loader import Root
from loader.dataset.log.denies import COMPARED_COLUMNS, DenyList, file_names
from loader.errors import Denied
from loader.storage import Store

from ..reading.sample import NO_METADATA
from .parts import key_text
from .shard_rows import Rows, own_keys
from .source_difference import PlaceDifference


class TakenDown:
    """The takedowns that deny objects and samples of one dataset's source."""

    def __init__(self, root: Root, dataset: str, store: Store) -> None:
        denies = root.state.denies
        self._is_active = bool(denies)
        self._denied = DenyList(denies, dataset)
        self._url = store.url.rstrip("/")
        self.has_left_out = False
        """True once a sample was left out."""

    @property
    def url(self) -> str:
        """URL of the source."""
        return self._url

    def has_object(self, key: str) -> bool:
        """Return whether a takedown names an object of the source, by key or URI."""
        if not self._is_active:
            return False
        uri = f"{self._url}/{key}"
        names = file_names(key, uri, [key])
        names += file_names(key, uri.removeprefix("file://"), [key])
        return any(self._denied.denying_entry("raw", key_text(name)) for name in dict.fromkeys(names))

    def without_objects(self, changes: PlaceDifference) -> PlaceDifference:
        """Return a difference without new and changed objects that a takedown names.

        Raises: Denied if a new dataset has no other object.
        """
        if not self._is_active:
            return changes
        denied = frozenset(info.key for info in changes.fresh if self.has_object(info.key))
        fresh = [info for info in changes.fresh if info.key not in denied]
        if changes.fresh and not fresh and changes.live is None:
            raise self.all_denied_error(f"the {len(changes.fresh)} objects")
        return replace(changes, fresh=fresh, replaced=changes.replaced - denied, taken_down=denied)

    def has_sample(self, key: str, source: Mapping[str, str]) -> bool:
        """Return whether a takedown denies a sample. source: its provenance."""
        if not self._is_active:
            return False
        names = {**source, "key": key}
        is_denied = any(
            self._denied.denying_entry(kind, names[column])
            for kind, columns in COMPARED_COLUMNS.items()
            for column in columns
            if names.get(column)
        )
        self.has_left_out |= is_denied
        return is_denied

    def without_samples(self, rows: Rows) -> Rows:
        """Return a shard's rows without denied samples."""
        if not self._is_active:
            return rows
        remaining = []
        for number, key in enumerate(own_keys(rows)):
            source = rows.sources[number] or NO_METADATA
            named = {**source, "raw_key": rows.objects[number], "source_key": rows.source_keys[number]}
            if not self.has_sample(key, {name: key_text(text) for name, text in named.items()}):
                remaining.append(number)
        if len(remaining) == len(rows.source_keys):
            return rows
        return rows.take(remaining)

    def all_denied_error(self, what: str) -> Denied:
        """Return the error of a source from which nothing is left. what: its denied objects or samples."""
        remedy = "penstock takedown ls lists the takedowns"
        message = f"takedowns deny {what} of {self._url}; nothing was published. {remedy}"
        return Denied(message, what="takedowns", given=what, where=self._url)
