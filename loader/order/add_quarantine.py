"""Add samples to a plan's quarantine from a chosen step on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidPlan
from .content import PlanContent
from .random.plan_hash import int_in_range
from .sources.growth import Growth, origins
from .sources.quarantine import ListedSamples, Quarantine, QuarantineList, list_samples
from .sources.views import OrderView


def add_quarantine(
    plan: PlanContent,
    lists: Any,
    step: int,
) -> Quarantine:
    """Return the plan's quarantine together with these samples from a step on. Raises: as `Plan.quarantined`.

    lists: source name -> keys.
    """
    step = int_in_range("quarantined: step", step, 0, 2**53)
    if not isinstance(lists, Mapping):
        raise InvalidPlan(
            f"quarantined({lists!r}): {{source name: [sample keys]}} is needed",
            what="quarantined",
            given=lists,
            accepted="{source name: [sample keys]}",
        )
    source_names = {planned.source for planned in plan.sources.values()}
    views: dict[str, OrderView] = {}
    for name in source_names:
        # Any bucket will do: all come from one version, which has the keys of all.
        buckets = plan.views_at(name, step)
        largest = max(buckets, key=lambda source: source.shape.n)
        views[name] = largest.view

    more: list[QuarantineList] = []
    for name, keys in lists.items():
        samples = list_samples(name, [keys], views)  # by ordinal in the version in force
        growths = plan.growths_of(name)
        growth_in_force = sum(growth.step <= step for growth in growths)
        more += _lists_by_origin(name, step, samples, growths, growth_in_force)
    return plan.quarantine.with_more(more)


def _lists_by_origin(
    source: str,
    step: int,
    samples: ListedSamples,
    growths: Sequence[Growth],
    growth_in_force: int,
) -> list[QuarantineList]:
    """Return a list for each version that brought some of the samples, with their ordinals in that version."""
    sample_ordinals = [ordinal for ordinal, _ in samples]
    ordinals = np.array(sample_ordinals, np.int64)
    # [samples] each: growth that brought the sample, 0 for the first version; ordinal in that growth's version
    growth_numbers, own_ordinals = origins(growths, growth_in_force, ordinals)
    rows = zip(
        growth_numbers.tolist(),
        own_ordinals.tolist(),
        samples,
        strict=True,
    )
    samples_by_growth: dict[int, list[tuple[int, str]]] = {}  # growth -> (ordinal, key) of its samples
    for growth, ordinal, (_, key) in rows:
        growth_samples = samples_by_growth.setdefault(growth, [])
        growth_samples.append((ordinal, key))

    lists = []
    for growth, growth_samples in sorted(samples_by_growth.items()):
        entry = QuarantineList(
            start_step=step,
            source=source,
            samples=tuple(growth_samples),
            growth=growth,
        )
        lists.append(entry)
    return lists
