"""Known-bad samples: the plan fills their slots with substitutes.

A list applies from a step on, like a schedule's weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import whole
from .views import OrderView

QuarantineKeys = Mapping[str, Iterable[str]]
"""Source name -> keys of known-bad samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineList:
    """Samples of one source that no slot may hold from a step on."""

    start_step: int
    """First step to which the list applies."""
    source: str
    """Source name."""
    samples: tuple[tuple[int, str], ...]
    """(version ordinal, key) pairs, in order of ordinal."""
    growth: int = 0
    """Number of the growth whose version has these ordinals; 0 for the first version."""

    def to_json(self) -> dict[str, Any]:
        return {
            "start_step": self.start_step,
            "source": self.source,
            "samples": [[ordinal, key] for ordinal, key in self.samples],
            **({"growth": self.growth} if self.growth else {}),
        }


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A plan's lists of known-bad samples."""

    lists: Sequence[QuarantineList] = ()
    """In order of start step, source (without bucket) and growth."""
    _tables: Mapping[tuple[str, int], tuple[I64, I64]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        since: dict[tuple[str, int], dict[int, int]] = {}  # (source, growth) -> ordinal -> first step
        for entry in self.lists:
            first_steps = since.setdefault((entry.source, entry.growth), {})
            for ordinal, _ in entry.samples:
                earliest = first_steps.get(ordinal, entry.start_step)
                first_steps[ordinal] = min(entry.start_step, earliest)
        tables = {}
        for name, first_steps in since.items():
            ordinals = sorted(first_steps)
            steps = [first_steps[ordinal] for ordinal in ordinals]
            tables[name] = (np.array(ordinals, np.int64), np.array(steps, np.int64))
        object.__setattr__(self, "_tables", tables)

    def holds(self, source: str, step: int, ordinals: I64, growth: int = 0) -> NDArray[np.bool_]:
        """Return a bool per version ordinal (int64) of a growth's version: True if quarantined at this step.

        O(len(ordinals) * log(samples listed)).
        """
        if (source, growth) not in self._tables:
            return np.zeros(len(ordinals), np.bool_)
        listed, since = self._tables[source, growth]
        at = np.searchsorted(listed, ordinals)
        at = np.minimum(at, len(listed) - 1)  # ordinals above the last one match nothing
        is_held: NDArray[np.bool_] = (listed[at] == ordinals) & (since[at] <= step)
        return is_held

    def with_more(self, more: Iterable[QuarantineList]) -> "Quarantine":
        samples: dict[tuple[int, str, int], set[tuple[int, str]]] = {}
        for entry in (*self.lists, *more):
            applies = (entry.start_step, entry.source, entry.growth)
            samples.setdefault(applies, set()).update(entry.samples)
        lists = []
        for (start, source, growth), pairs in sorted(samples.items()):
            if pairs:
                ordered = tuple(sorted(pairs))
                lists.append(QuarantineList(start_step=start, source=source, samples=ordered, growth=growth))
        return Quarantine(tuple(lists))

    def to_json(
        self, before: int | None = None, sources: Iterable[str] | None = None
    ) -> list[dict[str, Any]]:
        names = None if sources is None else set(sources)
        return [
            entry.to_json()
            for entry in self.lists
            if (before is None or entry.start_step < before) and (names is None or entry.source in names)
        ]


def quarantine_of(value: object, views: Mapping[str, OrderView]) -> Quarantine:
    if isinstance(value, Mapping):
        stretches: object = [(0, value)]
    else:
        stretches = value or []
    if not isinstance(stretches, Sequence) or isinstance(stretches, str):
        raise InvalidPlan(f"quarantine = {value!r}: {{source name: [sample keys]}} is needed")
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
        for name, ordinals in named:
            keys.setdefault((start, name), []).append(ordinals)
    return Quarantine().with_more(
        QuarantineList(start_step=start, source=name, samples=listed_samples(name, ordinals, views))
        for (start, name), ordinals in keys.items()
    )


def listed_samples(
    source: str, value: Iterable[Iterable[str]], views: Mapping[str, OrderView]
) -> tuple[tuple[int, str], ...]:
    """Return (version ordinal, key) for the keys in `value`, one list or several, by ordinal.

    Raises InvalidPlan if the source is unknown, or a key has no live sample.
    """
    if source not in views:
        raise InvalidPlan(f"quarantine names the source {source!r}; the sources are {sorted(views)}")
    for keys in value:
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidPlan(f"quarantine[{source!r}] = {keys!r}: a list of sample keys is needed")
    named = list(dict.fromkeys(key for keys in value for key in keys))
    if strange := [key for key in named if not isinstance(key, str)]:
        raise InvalidPlan(f"quarantine[{source!r}] has {strange[0]!r}; sample keys are strings")
    ordinals = views[source].ordinals(named).tolist()
    if unknown := [key for key, ordinal in zip(named, ordinals, strict=True) if ordinal < 0]:
        raise InvalidPlan(
            f"quarantine[{source!r}] names {len(unknown)} sample(s) that its version does not have, the first is "
            f"{unknown[0]!r}; correct the keys, or leave out keys that were excluded from the version"
        )
    return tuple(sorted(zip(ordinals, named, strict=True)))
