"""A view whose first epoch has its samples in a given order; later epochs are L1's over the same entries."""

import hashlib
from typing import Any

import numpy as np

from ...errors import EmptyView, InvalidPlan
from ..random.keyed_permutation import I64
from ..random.lanes import MAX_SAMPLES
from ..random.plan_hash import content_hash
from .views import OrderView


class ListedView:
    """The entries of a list, numbered by (version ordinal, place in the list); immutable.

    An ordinal may come more than once: each is an entry of its own.

    listed: the view that the samples are of.
    first_epoch: int64 [N], the entry at each place of the list, which is the position in the first epoch.
    places: int64 [N], the place of each entry.
    list_sha256: the hash that names the list, of its ordinals as little-endian int64.
    """

    def __init__(self, view: OrderView, ordinals: I64) -> None:
        """Make the view. ordinals: int64 [N], version ordinals of the view's samples, as `checked_list` has them."""
        self.listed = view
        self.places = np.argsort(ordinals, kind="stable").astype(np.int64, copy=False)
        self._ordinals = ordinals[self.places]
        self.first_epoch = np.empty_like(self.places)
        self.first_epoch[self.places] = np.arange(len(ordinals))
        self.list_sha256 = list_sha256(ordinals)

    def __reduce__(self) -> Any:
        return ListedView, (self.listed, self.in_order)

    def __repr__(self) -> str:
        return f"ListedView({self.listed!r}, {len(self)} listed)"

    def __len__(self) -> int:
        return len(self.places)

    @property
    def in_order(self) -> I64:
        """The list: int64 [N] version ordinals by place."""
        return self._ordinals[self.first_epoch]

    @property
    def id(self) -> str:
        """Content hash of the view and the list."""
        return content_hash("w", {"list": self.list_sha256, "view": self.listed.id})

    @property
    def identity(self) -> str:
        """The version's id, as of the view."""
        return self.listed.identity

    @property
    def mean_sample_bytes(self) -> int:
        return self.listed.mean_sample_bytes

    def spec(self) -> dict[str, Any]:
        """Return the JSON that a plan stores to open the view again."""
        return {"kind": "listed", "view": self.listed.spec(), "list": self.list_sha256}

    def version_ordinals(self, x: I64) -> I64:
        """Return version ordinals (int64) of entries (int64); they ascend, not strictly."""
        return self._ordinals[x]

    def keys(self, version_ordinals: I64) -> list[str]:
        """Return the sample keys at version ordinals (int64)."""
        return self.listed.keys(version_ordinals)

    def ordinals(self, keys: Any) -> I64:
        """Return version ordinals (int64) of sample keys, listed or not; -1 for a key that the version lacks."""
        return self.listed.ordinals(keys)


def list_sha256(ordinals: I64) -> str:
    """Return the hex SHA-256 of a list's ordinals as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(ordinals, dtype="<i8").tobytes()).hexdigest()


def checked_list(value: Any) -> I64:
    """Return a list as int64 [N], a copy. Raises: InvalidPlan for anything else; EmptyView for an empty one."""
    array = np.asarray(value if isinstance(value, np.ndarray) else list(value))
    if array.size == 0:
        raise EmptyView("listed: the list is empty; name the version ordinals of one sample at least")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidPlan(
            f"listed: the list is {array.dtype} {list(array.shape)}; version ordinals are needed, whole numbers in one "
            "dimension, such as view.ordinals(keys) gives"
        )
    wrong = np.flatnonzero((array < 0) | (array >= MAX_SAMPLES))
    if len(wrong):
        place = int(wrong[0])
        raise InvalidPlan(
            f"listed: place {place} has {array[place]}, as {len(wrong)} of {len(array)} have such; -1 is a key that no "
            "live sample of the version has: leave it out, or list samples of the version that has it"
        )
    return array.astype(np.int64)
