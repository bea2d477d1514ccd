"""A source over a dataset that you bring: its items numbered 0 to N - 1, without their bytes.

The order needs a length and a name. The dataset itself stays with the process that made the view: a view that was
pickled, or reopened from a plan's JSON, has the numbers and no dataset.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InvalidPlan, InvalidRuntime
from ..random.keyed_permutation import I64, encode_field
from ..random.plan_hash import content_hash

if TYPE_CHECKING:
    from .items_source import ItemKeys, ItemsSource

MAX_SHOWN = 200
"""Characters shown of a name or a fingerprint, which a stored plan may hold of any length."""


def escape_text(text: str) -> str:
    """Return a stored text within one line: control characters are escaped, and a long text ends in an ellipsis."""
    start = text[:MAX_SHOWN]
    if not start.isprintable():
        start = ascii(start)[1:-1]
    if len(text) > MAX_SHOWN:
        start += "..."
    return start


def unsupported(
    source_name: str,
    view: object,
    operation: str,
) -> str:
    """Return the error for a view without an operation, such as "cannot be packed"."""
    if isinstance(view, ItemsView):
        return (
            f"source {source_name!r} is a dataset, which {operation}: its items are unknown until they are made. Write "
            "them into a version (loader.Root(...).write) for that"
        )
    return f"source {source_name!r} is a {type(view).__name__}, which {operation}"


def missing_text(source_name: str, view: "ItemsView") -> str:
    """Return what is missing if a plan was opened without its dataset, and what to pass."""
    name = escape_text(view.name)
    return (
        f"source '{escape_text(source_name)}' is the dataset '{name}', of which the plan has the order and no items; "
        f"pass --recipe module:function, which returns it, or loader.open_plan(root, hash, items={{'{name}': dataset}})"
    )


class ItemsView:
    """All items of a dataset, as the view of a plan's source; immutable."""

    default_chunk = 1
    """Samples of a chunk unless the plan names it: the full shuffle of torch's sampler."""
    mean_sample_bytes = 0

    def __init__(
        self,
        name: str,
        length: int,
        fingerprint: str,
        source: "ItemsSource | None",
    ) -> None:
        """Keep the facts of a dataset.

        name: of the data; "" takes the source's name in the plan.
        length: number of items.
        fingerprint: hash of the content; "" is unknown content.
        source: the dataset; None is a plan that was opened without it.
        """
        self.name = name
        self.fingerprint = fingerprint
        self.source = source
        self._length = length
        self._ordinals: dict[str, int] | None = None  # key -> ordinal, made at the first look-up

    def __reduce__(self) -> Any:
        # A pickled plan is sent to every rank and every store; the dataset travels only to workers, by itself.
        arguments = (
            self.name,
            self._length,
            self.fingerprint,
            None,
        )
        return ItemsView, arguments

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
        digest = hashlib.sha256()
        digest.update(encode_field(self.name))
        digest.update(encode_field(self._length))
        digest.update(encode_field(self.fingerprint))
        return f"items-{digest.hexdigest()}"

    def describe(self) -> str:
        """Return what the plan has of the data, and what goes unnoticed."""
        name = f"dataset '{escape_text(self.name)}'"
        if self.fingerprint:
            text = f"{name}, fingerprint {escape_text(self.fingerprint)}"
        else:
            text = f"{name} without a fingerprint: changed content of the same length goes unnoticed"
        if self.source is not None and self.source.seeded is False:
            text += "; seeded=False: items may differ from run to run"
        return text

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "items",
            "name": self.name,
            "length": self._length,
            "fingerprint": self.fingerprint,
        }

    def of_source(self, source_name: str) -> "ItemsView":
        """Return this view with the name of its source in the plan, unless the data has a name of its own."""
        if self.name:
            return self
        return ItemsView(
            name=source_name,
            length=self._length,
            fingerprint=self.fingerprint,
            source=self.source,
        )

    def over(self, source: "ItemsSource") -> "ItemsView":
        """Return this view with its dataset at hand."""
        return ItemsView(
            name=self.name,
            length=self._length,
            fingerprint=self.fingerprint,
            source=source,
        )

    def version_ordinals(self, x: I64) -> I64:
        return np.asarray(x, dtype=np.int64)

    def keys(self, version_ordinals: I64) -> list[str]:
        ordinals = version_ordinals.tolist()
        names: ItemKeys | None = None
        if self.source is not None:
            names = self.source.keys
        if names is None:
            return [str(ordinal) for ordinal in ordinals]
        if callable(names):
            return [self._call_key(names, ordinal) for ordinal in ordinals]
        return [names[ordinal] for ordinal in ordinals]

    def _call_key(self, key_of: Callable[[int], str], ordinal: int) -> str:
        """Return the name that a function gives an item. Raises: its errors, with a note; InvalidRuntime."""
        try:
            key = key_of(ordinal)
        except Exception as error:
            error.add_note(
                f"while naming item {ordinal} of {escape_text(self.name)!r} by loader.items(keys=)"
            )
            raise
        if not isinstance(key, str):
            raise InvalidRuntime(
                f"keys({ordinal}) of {escape_text(self.name)!r} is a {type(key).__name__}; return a string for each "
                "item"
            )
        return key

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return the ordinals (int64) of keys; -1 for a key of no item. Named items cost one pass over all names."""
        if self.source is None or self.source.keys is None:
            numbers = [self._number(key) for key in keys]
            return np.array(numbers, np.int64)
        if self._ordinals is None:
            everything = np.arange(self._length)
            all_keys = self.keys(everything)
            pairs = zip(all_keys, everything.tolist(), strict=True)
            self._ordinals = dict(pairs)
        ordinal_of_key = self._ordinals
        numbers = [ordinal_of_key.get(key, -1) for key in keys]
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


def check_keys(keys: object, length: int) -> "ItemKeys | None":
    """Return the names of a dataset's items. Raises InvalidPlan unless they are one distinct string per item."""
    if keys is None or callable(keys):
        return keys
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence):
        raise InvalidPlan(
            f"keys is a {type(keys).__name__}: a list with one string per item, or a function int -> str, is needed",
            what="keys",
            given=type(keys).__name__,
            accepted="a list with one string per item, or a function",
        )
    if len(keys) != length:
        raise InvalidPlan(
            f"keys has {len(keys)} names, and the dataset {length} items; give each item one name",
            what="keys",
            given=len(keys),
            accepted=length,
        )
    # A column of a table would look up each name by a query of its own.
    names = list(keys)
    for ordinal, key in enumerate(names):
        if not isinstance(key, str):
            raise InvalidPlan(
                f"keys[{ordinal}] = {key!r} is a {type(key).__name__}; a string is needed",
                what=f"keys[{ordinal}]",
                given=key,
                accepted="a string",
            )
    n_repeated = length - len(set(names))
    if n_repeated:
        raise InvalidPlan(
            f"keys gives {n_repeated} items a name that another item has; make the names distinct",
            what="keys",
            given=f"{n_repeated} repeated names",
            accepted="distinct names",
        )
    return names


def fingerprint_of_keys(keys: Sequence[str]) -> str:
    """Return a hash of the names of all items, in order."""
    digest = hashlib.sha256()
    for key in keys:
        digest.update(encode_field(key))
    return f"keys-{digest.hexdigest()}"
