"""Known-bad samples: the plan fills their slots with substitutes.

A list applies from a step on, like a schedule's weights.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from ..random.keyed_permutation import I64
from ..random.plan_hash import int_in_range
from .views import OrderView

QuarantineKeys: TypeAlias = Mapping[str, Iterable[str]]
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


_Version: TypeAlias = tuple[str, int]
"""(source, growth)."""


class _FirstSteps(NamedTuple):
    """Quarantined samples of one version; int64 [listed] each."""

    ordinals: I64
    """Version ordinals, ascending."""
    since: I64
    """First step at which each is quarantined."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A plan's lists of known-bad samples."""

    lists: Sequence[QuarantineList] = ()
    """In order of start step, source (without bucket) and growth."""
    _tables: Mapping[_Version, _FirstSteps] = field(
        init=False,
        repr=False,
        compare=False,
    )

    def __post_init__(self) -> None:
        first_steps: dict[_Version, dict[int, int]] = {}  # version -> ordinal -> first step
        for entry in self.lists:
            version = (entry.source, entry.growth)
            steps = first_steps.setdefault(version, {})
            start = entry.start_step
            for ordinal, _ in entry.samples:
                earliest = steps.get(ordinal, start)
                steps[ordinal] = min(start, earliest)

        tables = {}
        for version, steps in first_steps.items():
            if not steps:  # `holds` needs a last row
                continue
            ascending = sorted(steps)
            since = [steps[ordinal] for ordinal in ascending]
            tables[version] = _FirstSteps(
                ordinals=np.array(ascending, np.int64),
                since=np.array(since, np.int64),
            )
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
        table = self._tables.get((source, growth))
        if table is None:
            return np.zeros(len(ordinals), np.bool_)
        listed = table.ordinals
        since = table.since
        last_row = len(listed) - 1
        row = np.searchsorted(listed, ordinals)  # [m]: where each ordinal would stand
        row = np.minimum(row, last_row)  # ordinals above the last one match nothing
        is_listed = listed[row] == ordinals
        has_begun = since[row] <= step
        is_quarantined: NDArray[np.bool_] = is_listed & has_begun
        return is_quarantined

    def with_more(self, more: Iterable[QuarantineList]) -> "Quarantine":
        """Return the lists together with others: one list per step, source and growth."""
        samples: dict[tuple[int, str, int], set[tuple[int, str]]] = {}
        for entry in chain(self.lists, more):
            scope = (entry.start_step, entry.source, entry.growth)
            samples_together = samples.setdefault(scope, set())
            samples_together.update(entry.samples)

        lists = []
        for scope in sorted(samples):
            pairs = sorted(samples[scope])
            if not pairs:
                continue
            start, source, growth = scope
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


def build_quarantine(
    value: object,
    views: Mapping[str, OrderView],
) -> Quarantine:
    """Return the quarantine that a caller requests. views: source -> view.

    value: {source: keys} from step 0 on; [(step, {source: keys}), ...]; or None. Raises: InvalidPlan.
    """
    entries: object = value or []
    if isinstance(value, Mapping):
        entries = [(0, value)]
    is_text = isinstance(entries, str)  # a str is a Sequence
    if not isinstance(entries, Sequence) or is_text:
        raise InvalidPlan(
            f"quarantine = {value!r}: {{source name: [sample keys]}} is needed",
            what="quarantine",
            given=value,
            accepted="{source name: [sample keys]}",
        )

    key_lists: dict[tuple[int, str], list[Iterable[str]]] = {}  # (first step, source) -> lists of keys
    for entry in entries:
        try:
            start, keys_by_source = entry
            source_keys = keys_by_source.items()
        except (AttributeError, TypeError, ValueError):
            raise InvalidPlan(
                f"quarantine entry {entry!r}: (step, {{source name: [sample keys]}}) is needed",
                what="quarantine",
                given=entry,
                accepted="(step, {source name: [sample keys]})",
            ) from None
        start = int_in_range("quarantine entry: step", start, 0, 2**53)
        for source, keys in source_keys:
            scope = (start, source)
            lists_of_source = key_lists.setdefault(scope, [])
            lists_of_source.append(keys)

    lists = []
    for (start, source), lists_of_source in key_lists.items():
        samples = list_samples(source, lists_of_source, views)
        quarantine_list = QuarantineList(
            start_step=start,
            source=source,
            samples=samples,
        )
        lists.append(quarantine_list)
    return Quarantine().with_more(lists)


def list_samples(
    source: str,
    key_lists: Sequence[Iterable[str]],
    views: Mapping[str, OrderView],
) -> ListedSamples:
    """Return (version ordinal, key) of each key in one list or several, by ordinal.

    Raises InvalidPlan if the source is unknown, or a key has no live sample.
    """
    if source not in views:
        raise InvalidPlan(
            f"quarantine names the source {source!r}; the sources are {sorted(views)}",
            what="quarantine",
            given=source,
        )
    for keys in key_lists:
        is_text = isinstance(keys, str)  # its characters are not keys
        if is_text or not isinstance(keys, Iterable):
            raise InvalidPlan(
                f"quarantine[{source!r}] = {keys!r}: a list of sample keys is needed",
                what="quarantine",
                where=f"source {source!r}",
                given=keys,
            )

    distinct: dict[str, None] = {}  # in the order of the lists
    for keys in key_lists:
        for key in keys:
            if not isinstance(key, str):
                raise InvalidPlan(
                    f"quarantine[{source!r}] has {key!r}; sample keys are strings",
                    what="key",
                    where=f"source {source!r}",
                    given=key,
                )
            distinct[key] = None

    distinct_keys = list(distinct)
    ordinals = views[source].ordinals(distinct_keys)
    samples: list[tuple[int, str]] = []
    unknown: list[str] = []
    for ordinal, key in zip(ordinals.tolist(), distinct_keys, strict=True):
        samples.append((ordinal, key))
        if ordinal < 0:
            unknown.append(key)
    if unknown:
        n_unknown = len(unknown)
        first_unknown = unknown[0]
        raise InvalidPlan(
            f"quarantine[{source!r}] names {n_unknown} sample(s) that its version does not have, the first is "
            f"{first_unknown!r}; correct the keys, or leave out keys that were excluded from the version",
            what="key",
            where=f"source {source!r}",
            given=first_unknown,
        )
    samples.sort()
    return tuple(samples)
