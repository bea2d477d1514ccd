"""Quarantine lists that are added to a plan: what `Plan.quarantined` makes of its plan."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import InvalidPlan
from ..content import PlanContent
from ..random.plan_hash import whole
from ..sources.growth import origins
from ..sources.quarantine import Quarantine, QuarantineList, listed_samples


def more_quarantine(plan: PlanContent, given: Any, step: int) -> Quarantine:
    """Return the plan's lists, and these from a step on. Raises InvalidPlan; see `Plan.quarantined`."""
    step = whole("quarantined: step", step, 0, 2**53)
    if not isinstance(given, Mapping):
        raise InvalidPlan(f"quarantined({given!r}): {{source name: [sample keys]}} is needed")
    views = {}
    for name in {one.source for one in plan.sources.values()}:
        in_force = plan.views_at(name, step)  # buckets are of one version, which knows the keys of all
        views[name] = max(in_force, key=lambda one: one.shape.n).view
    more: list[QuarantineList] = []
    for name, keys in given.items():
        samples = listed_samples(name, [keys], views)
        growths = plan.growths_of(name)
        number = sum(one.step <= step for one in growths)
        came, there = origins(growths, number, np.array([ordinal for ordinal, _ in samples], np.int64))
        named = list(zip(came.tolist(), there.tolist(), samples, strict=True))
        for growth in sorted(set(came.tolist())):
            mine = tuple((ordinal, key) for at, ordinal, (_, key) in named if at == growth)
            more.append(QuarantineList(start_step=step, source=name, samples=mine, growth=growth))
    return plan.quarantine.with_more(more)
