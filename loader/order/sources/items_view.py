"""A source over anybody's dataset: its items numbered 0 to N - 1, without their bytes.

The order needs a length and a name. The dataset itself stays with the process that made the view: a view that was
pickled, or reopened from a plan's JSON, has the numbers and no dataset.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64, framed
from ..random.plan_hash import content_hash

ItemKeys = Sequence[str] | Callable[[int], str]
"""Names of items: one per ordinal, or a function of the ordinal."""


class Dataset(Protocol):
    """What a source needs of a dataset, such as torch's map-style ones."""

    def __len__(self) -> int:
        """Return the number of items."""

    def __getitem__(self, index: int, /) -> Any:
        """Return an item: a mapping, a tuple or a single value."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemsSource:
    """A dataset, and how its items become samples."""

    dataset: Any
    """A `Dataset`, or a function without arguments that opens one in each process."""
    is_factory: bool
    """True if `dataset` is such a function."""
    fields: tuple[str, ...] | None = None
    """Field of each entry of a tuple; None names them "0", "1", ..."""
    keys: ItemKeys | None = None
    """Names of the items; None: their ordinals."""
    seeded: bool | Callable[[Any, np.random.Generator], object] = True
    """True seeds the global generators. A function seeds those of the dataset. False accepts draws that differ."""


class ItemsView:
    """All items of a dataset, as the view of a plan's source; immutable."""

    default_chunk = 1
    """Samples of a chunk unless the plan names it: the full shuffle of torch's sampler."""
    mean_sample_bytes = 0

    def __init__(self, name: str, length: int, fingerprint: str, source: ItemsSource | None) -> None:
        """Keep the facts of a dataset.

        name: of the data; "" takes the source's name in the plan. length: number of items. fingerprint: hash of the
        content, or "" if nothing is known of it. source: the dataset, or None where it is not at hand.
        """
        self.name = name
        self.fingerprint = fingerprint
        self.source = source
        self._length = length
        self._ordinals: dict[str, int] | None = None  # key -> ordinal, made at the first look-up

    def __reduce__(self) -> Any:
        # A pickled plan is sent to every rank and every store; the dataset travels only to workers, by itself.
        return ItemsView, (self.name, self._length, self.fingerprint, None)

    def __repr__(self) -> str:
        return f"ItemsView({self.name!r}, {self._length} items)"

    def __len__(self) -> int:
        return self._length

    @property
    def id(self) -> str:
        return content_hash("w", self.spec())

    @property
    def identity(self) -> str:
        """Return the name under which digests count the items: equal for equal data."""
        facts = framed(self.name) + framed(self._length) + framed(self.fingerprint)
        return "items-" + hashlib.sha256(facts).hexdigest()

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "items",
            "name": self.name,
            "length": self._length,
            "fingerprint": self.fingerprint,
        }

    def of_source(self, source_name: str) -> "ItemsView":
        """Return this view named as the plan's source, unless it has a name of its own."""
        if self.name:
            return self
        return ItemsView(source_name, self._length, self.fingerprint, self.source)

    def over(self, source: ItemsSource) -> "ItemsView":
        """Return this view with its dataset at hand."""
        return ItemsView(self.name, self._length, self.fingerprint, source)

    def version_ordinals(self, x: I64) -> I64:
        return np.asarray(x, dtype=np.int64)

    def keys(self, version_ordinals: I64) -> list[str]:
        names: ItemKeys | None = None
        if self.source is not None:
            names = self.source.keys
        keys: list[str] = []
        for ordinal in version_ordinals.tolist():
            if names is None:
                keys.append(str(ordinal))
            elif callable(names):
                keys.append(names(ordinal))
            else:
                keys.append(names[ordinal])
        return keys

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return the ordinals (int64) of keys; -1 for a key of no item. Named items cost one pass over all names."""
        if self.source is None or self.source.keys is None:
            numbers = [self._number(key) for key in keys]
            return np.array(numbers, np.int64)
        if self._ordinals is None:
            everything = np.arange(self._length)
            all_keys = self.keys(everything)
            self._ordinals = {key: ordinal for ordinal, key in enumerate(all_keys)}
        known = self._ordinals
        numbers = [known.get(key, -1) for key in keys]
        return np.array(numbers, np.int64)

    def _number(self, key: str) -> int:
        """Return the ordinal that a key states in decimal digits; -1 if it states none of this dataset."""
        if not key.isascii() or not key.isdecimal():
            return -1
        ordinal = int(key)
        has_item = ordinal < self._length
        if has_item and key == str(ordinal):  # "007" names no item
            return ordinal
        return -1


def checked_keys(keys: object, length: int) -> ItemKeys | None:
    """Return the names of a dataset's items. Raises InvalidPlan unless they are one distinct string per item."""
    if keys is None or callable(keys):
        return keys
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence):
        raise InvalidPlan(
            f"keys is a {type(keys).__name__}: a list with one string per item, or a function int -> str, is needed"
        )
    if len(keys) != length:
        raise InvalidPlan(
            f"keys has {len(keys)} names, and the dataset {length} items; give each item one name"
        )
    for ordinal, key in enumerate(keys):
        if not isinstance(key, str):
            raise InvalidPlan(f"keys[{ordinal}] = {key!r} is a {type(key).__name__}; a string is needed")
    n_repeated = length - len(set(keys))
    if n_repeated:
        raise InvalidPlan(
            f"keys gives {n_repeated} items a name that another item has; make the names distinct"
        )
    return keys


def fingerprint_of_keys(keys: Sequence[str]) -> str:
    """Return a hash of the names of all items, in order."""
    digest = hashlib.sha256()
    for key in keys:
        digest.update(framed(key))
    return f"keys-{digest.hexdigest()}"
