"""Time limits of each object of a batch, computed before it is decoded."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.storage import Store
from penstock.compute.pool import Compute, Failure
from penstock.compute.pool.environment import store_variables

from ..media.decode_time import Work, told_of, work_of
from ..spec import DatasetSpec

Tell = Callable[[str], object]
log = logging.getLogger(__name__)

_PROBE_S = 60.0
"""Seconds to read a container's length: a few byte ranges, nothing is decoded."""

_WORTH_LOGGING = 1.5
"""Multiple of `work_timeout_s` above which a limit is logged."""

_TIMED = ("audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Time limit of an object."""

    seconds: float
    """Time limit."""
    work: Work | None = None
    """Estimated work; None for unknown."""

    def reason(self, failure: Failure) -> str:
        """Return why an object has no result."""
        if failure.code != "timeout" or self.work is None:
            return failure.summary
        return (
            f"{failure.summary}, decoding {self.work}; raise work_timeout_s of its DatasetSpec, or "
            "max_work_timeout_s, if the object is intact and the machine slow"
        )


def limits_probed(
    landing: Store, compute: Compute, rows: Sequence[Mapping[str, Any]], spec: DatasetSpec, tell: Tell
) -> list[Limit]:
    """Return limits of objects that are not decoded yet, from their containers. rows: key and mime."""
    timed = [number for number, row in enumerate(rows) if row["mime"].startswith(_TIMED)]
    places = [(landing, rows[number]["key"]) for number in timed]
    works: dict[int, Work] = {}
    outcomes = compute.map(
        told_of,
        places,
        timeout_s=min(_PROBE_S, spec.work_timeout_s),
        variables=store_variables(landing),
    )
    for number, outcome in zip(timed, outcomes, strict=True):
        if outcome.value is not None:
            duration_s, pixels, values = outcome.value
            works[number] = Work(duration_s=duration_s, pixels=pixels, values=values)
    return [_limit(row["key"], works.get(number), spec, tell) for number, row in enumerate(rows)]


def limits_decoded(rows: Sequence[Mapping[str, Any]], spec: DatasetSpec, tell: Tell) -> list[Limit]:
    """Return limits of objects from their media rows."""
    return [
        _limit(row["key"], work_of(row) if row["kind"] in ("audio", "video") else None, spec, tell)
        for row in rows
    ]


def _limit(key: str, work: Work | None, spec: DatasetSpec, tell: Tell) -> Limit:
    if work is None:
        return Limit(seconds=spec.work_timeout_s)
    seconds = work.limit_s(spec.work_timeout_s, spec.max_work_timeout_s)
    if seconds > _WORTH_LOGGING * spec.work_timeout_s:
        tell(f"{key!r}: decoding {work}, limit {seconds:,.0f} s")
    return Limit(seconds=seconds, work=work)
