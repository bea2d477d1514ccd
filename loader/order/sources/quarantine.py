"""Known-bad samples: the plan fills their slots with substitutes.

A list applies from a step on, like a schedule's weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import whole
from .views import OrderView

QuarantineKeys = Mapping[str, Iterable[str]]
"""Source name -> keys of known-bad samples."""
ListedSamples: TypeAlias = tuple[tuple[int, str], ...]
"""(version ordinal, key) pairs, in order of ordinal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineList:
    """Samples of one source that no slot may hold from a step on."""

    start_step: int
    """First step to which the list applies."""
    source: str
    """Source name."""
    samples: ListedSamples
    growth: int = 0
    """Number of the growth whose version has these ordinals; 0 for the first version."""

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "start_step": self.start_step,
            "source": self.source,
            "samples": [[ordinal, key] for ordinal, key in self.samples],
        }
        if self.growth:  # plans without growths keep the JSON, and the id, that they always had
            body["growth"] = self.growth
        return body


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A plan's lists of known-bad samples."""

    lists: Sequence[QuarantineList] = ()
    """In order of start step, source (without bucket) and growth."""
    _tables: Mapping[tuple[str, int], tuple[I64, I64]] = field(init=False, repr=False, compare=False)
    """(source, growth) -> ordinals, ascending, and the first step at which each is quarantined; int64 [listed]."""

    def __post_init__(self) -> None:
        since: dict[tuple[str, int], dict[int, int]] = {}  # (source, growth) -> ordinal -> first step
        for entry in self.lists:
            scope = (entry.source, entry.growth)
            first_steps = since.setdefault(scope, {})
            start = entry.start_step
            for ordinal, _ in entry.samples:
                earliest = first_steps.get(ordinal, start)
                first_steps[ordinal] = min(start, earliest)

        tables = {}
        for scope, first_steps in since.items():
            ordinals = sorted(first_steps)
            steps = [first_steps[ordinal] for ordinal in ordinals]
            listed = np.array(ordinals, np.int64)
            first_step = np.array(steps, np.int64)
            tables[scope] = (listed, first_step)
        object.__setattr__(self, "_tables", tables)  # the class is frozen

    def holds(
        self,
        source: str,
        step: int,
        ordinals: I64,
        growth: int = 0,
    ) -> NDArray[np.bool_]:
        """Return a bool per version ordinal (int64) of a growth's version: True if quarantined at this step.

        O(len(ordinals) * log(samples listed)).
        """
        if (source, growth) not in self._tables:
            return np.zeros(len(ordinals), np.bool_)
        listed, since = self._tables[source, growth]
        row = np.searchsorted(listed, ordinals)  # [m]: where each ordinal would stand
        row = np.minimum(row, len(listed) - 1)  # ordinals above the last one match nothing
        is_listed = listed[row] == ordinals
        has_begun = since[row] <= step
        is_quarantined: NDArray[np.bool_] = is_listed & has_begun
        return is_quarantined

    def with_more(self, more: Iterable[QuarantineList]) -> "Quarantine":
        """Return the lists together with others: one list per step, source and growth."""
        samples: dict[tuple[int, str, int], set[tuple[int, str]]] = {}
        for entry in (*self.lists, *more):
            scope = (entry.start_step, entry.source, entry.growth)
            samples_together = samples.setdefault(scope, set())
            samples_together.update(entry.samples)

        lists = []
        for scope in sorted(samples):
            start, source, growth = scope
            pairs = sorted(samples[scope])
            if not pairs:
                continue
            entry = QuarantineList(
                start_step=start,
                source=source,
                samples=tuple(pairs),
                growth=growth,
            )
            lists.append(entry)
        return Quarantine(tuple(lists))

    def to_json(
        self,
        before: int | None = None,
        sources: Iterable[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the JSON of the lists that begin before a step, of some sources; None stands for all."""
        names: set[str] | None = None
        if sources is not None:
            names = set(sources)
        body = []
        for entry in self.lists:
            is_past = before is None or entry.start_step < before
            is_named = names is None or entry.source in names
            if is_past and is_named:
                body.append(entry.to_json())
        return body


def quarantine_of(value: object, views: Mapping[str, OrderView]) -> Quarantine:
    """Return the lists that a caller requests: {source: keys}, or (step, {source: keys}) pairs."""
    entries: object = value or []
    if isinstance(value, Mapping):
        entries = [(0, value)]
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InvalidPlan(f"quarantine = {value!r}: {{source name: [sample keys]}} is needed")

    key_lists: dict[tuple[int, str], list[Iterable[str]]] = {}  # (first step, source) -> lists of keys
    for entry in entries:
        try:
            start, keys_by_source = entry
            source_keys = keys_by_source.items()
        except (AttributeError, TypeError, ValueError):
            raise InvalidPlan(
                f"quarantine entry {entry!r}: (step, {{source name: [sample keys]}}) is needed"
            ) from None
        start = whole("quarantine entry: step", start, 0, 2**53)
        for source, keys in source_keys:
            lists_of_source = key_lists.setdefault((start, source), [])
            lists_of_source.append(keys)

    lists = []
    for (start, source), lists_of_source in key_lists.items():
        samples = listed_samples(source, lists_of_source, views)
        quarantine_list = QuarantineList(
            start_step=start,
            source=source,
            samples=samples,
        )
        lists.append(quarantine_list)
    return Quarantine().with_more(lists)


def listed_samples(
    source: str,
    value: Iterable[Iterable[str]],
    views: Mapping[str, OrderView],
) -> ListedSamples:
    """Return (version ordinal, key) for the keys in `value`, one list or several, by ordinal.

    Raises InvalidPlan if the source is unknown, or a key has no live sample.
    """
    if source not in views:
        raise InvalidPlan(f"quarantine names the source {source!r}; the sources are {sorted(views)}")
    for keys in value:
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidPlan(f"quarantine[{source!r}] = {keys!r}: a list of sample keys is needed")

    distinct: dict[str, None] = {}  # in the order of the lists
    for keys in value:
        distinct.update(dict.fromkeys(keys))
    for key in distinct:
        if not isinstance(key, str):
            raise InvalidPlan(f"quarantine[{source!r}] has {key!r}; sample keys are strings")

    names = list(distinct)
    ordinals = views[source].ordinals(names).tolist()
    samples = list(zip(ordinals, names, strict=True))
    unknown = [name for ordinal, name in samples if ordinal < 0]
    if unknown:
        raise InvalidPlan(
            f"quarantine[{source!r}] names {len(unknown)} sample(s) that its version does not have, the first is "
            f"{unknown[0]!r}; correct the keys, or leave out keys that were excluded from the version"
        )
    return tuple(sorted(samples))
