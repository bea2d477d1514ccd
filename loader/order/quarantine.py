"""Known-bad samples: their slots are planned with substitutes, so nobody reads them.

A list has a step from which it counts, as a schedule's weights have: what was planned before stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidPlan
from .keys import I64
from .views import OrderView
from .whole import whole

QuarantineKeys = Mapping[str, Iterable[str]]
"""Source name -> keys of known-bad samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineList:
    """Samples of one source that no slot holds from `start_step` on: (version ordinal, key), by ordinal."""

    start_step: int
    source: str
    samples: tuple[tuple[int, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "start_step": self.start_step,
            "source": self.source,
            "samples": [[ordinal, key] for ordinal, key in self.samples],
        }


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A plan's lists, in order of start step, then source (its whole name, without a bucket). Empty for most plans."""

    lists: Sequence[QuarantineList] = ()
    _tables: Mapping[str, tuple[I64, I64]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        since: dict[str, dict[int, int]] = {}
        for one in self.lists:
            of_source = since.setdefault(one.source, {})
            for ordinal, _ in one.samples:
                of_source[ordinal] = min(one.start_step, of_source.get(ordinal, one.start_step))
        tables = {}
        for name, of_source in since.items():
            ordinals = np.array(sorted(of_source), np.int64)
            tables[name] = ordinals, np.array([of_source[o] for o in ordinals.tolist()], np.int64)
        object.__setattr__(self, "_tables", tables)

    def __bool__(self) -> bool:
        return bool(self.lists)

    def holds(self, source: str, step: int, ordinals: I64) -> NDArray[np.bool_]:
        """bool per version ordinal (int64): quarantined at this step. O(len(ordinals) * log(samples listed))."""
        listed, since = self._tables.get(source, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        if not len(listed):
            return np.zeros(len(ordinals), np.bool_)
        at = np.minimum(np.searchsorted(listed, ordinals), len(listed) - 1)
        held: NDArray[np.bool_] = (listed[at] == ordinals) & (since[at] <= step)
        return held

    def to_json(
        self, before: int | None = None, sources: Iterable[str] | None = None
    ) -> list[dict[str, Any]]:
        """The lists; with `before` and `sources`, those of these sources that counted before that step."""
        names = None if sources is None else set(sources)
        return [
            one.to_json()
            for one in self.lists
            if (before is None or one.start_step < before) and (names is None or one.source in names)
        ]


def quarantine_of(given: object, views: Mapping[str, OrderView]) -> Quarantine:
    """The lists of `make_plan(quarantine=)`. views: source name -> its whole view. Raises InvalidPlan."""
    stretches = [(0, given)] if isinstance(given, Mapping) else given or []
    if not isinstance(stretches, Sequence) or isinstance(stretches, str):
        raise InvalidPlan(f"quarantine = {given!r}: {{source name: [sample keys]}} is needed")
    keys: dict[tuple[int, str], list[Iterable[str]]] = {}
    for entry in stretches:
        try:
            start, by_source = entry
            named = by_source.items()
        except (AttributeError, TypeError, ValueError):
            raise InvalidPlan(
                f"quarantine entry {entry!r}: (step, {{source name: [sample keys]}}) is needed"
            ) from None
        start = whole("quarantine entry: step", start, 0, 2**53)
        for name, some in named:
            keys.setdefault((start, name), []).append(some)
    lists = (
        _list(*of, some, views)
        for of, some in sorted(keys.items(), key=lambda one: (one[0][0], str(one[0][1])))
    )
    return Quarantine(tuple(one for one in lists if one.samples))


def _list(
    start_step: int, source: str, given: Iterable[Iterable[str]], views: Mapping[str, OrderView]
) -> QuarantineList:
    """The list of the keys in `given`, which has one list or several. Costs what finding them costs the view: of a
    version, reading its key column once.

    Raises InvalidPlan: an unknown source, a str instead of a list of keys, or a key that no live sample has.
    """
    if source not in views:
        raise InvalidPlan(f"quarantine names the source {source!r}; the sources are {sorted(views)}")
    for keys in given:
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidPlan(f"quarantine[{source!r}] = {keys!r}: a list of sample keys is needed")
    wanted = list(dict.fromkeys(key for keys in given for key in keys))
    if strange := [key for key in wanted if not isinstance(key, str)]:
        raise InvalidPlan(f"quarantine[{source!r}] has {strange[0]!r}; sample keys are strings")
    ordinals = views[source].ordinals(wanted).tolist()
    if unknown := [key for key, ordinal in zip(wanted, ordinals, strict=True) if ordinal < 0]:
        raise InvalidPlan(
            f"quarantine[{source!r}] names {len(unknown)} sample(s) that its version does not have, the first is "
            f"{unknown[0]!r}; correct the keys, or leave out those that were excluded from the version"
        )
    return QuarantineList(
        start_step=start_step, source=source, samples=tuple(sorted(zip(ordinals, wanted, strict=True)))
    )
