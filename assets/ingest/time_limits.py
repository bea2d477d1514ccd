"""Time limit of each object: the dataset's, and more for long audio or video."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.storage import Store
from penstock.compute.pool import Compute, Failure
from penstock.compute.pool.environment import store_variables

from ..media.decode_time import DecodeWork, media_work, read_header_work
from ..spec import DatasetSpec

Tell = Callable[[str], object]
log = logging.getLogger(__name__)

_PROBE_S = 60.0
"""Time limit for reading a container's length, in s."""

_MIN_RATIO_TO_LOG = 1.5
"""Multiple of `work_timeout_s` above which a limit is logged."""

_TIMED_MIMES = ("audio/", "video/")
"""Types whose objects have a duration, which decides their limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """Time limit of one object."""

    seconds: float
    work: DecodeWork | None = None
    """Estimated work; None if unknown."""

    def reason(self, failure: Failure) -> str:
        """Return why an object with this failure has no result."""
        if failure.code != "timeout" or self.work is None:
            return failure.summary
        return (
            f"{failure.summary}, decoding {self.work}; raise work_timeout_s of its DatasetSpec, or "
            "max_work_timeout_s, if the object is intact and the machine slow"
        )


def container_limits(
    landing: Store,
    compute: Compute,
    rows: Sequence[Mapping[str, Any]],
    spec: DatasetSpec,
    tell: Tell,
) -> list[TimeLimit]:
    """Return the limits of objects that are not decoded yet, from their containers.

    rows: of `raw_objects`. tell: receives each object whose limit far exceeds the dataset's.
    """
    timed_keys = [row["key"] for row in rows if row["mime"].startswith(_TIMED_MIMES)]
    # In workers, because a damaged container can kill or block its reader.
    outcomes = compute.map(
        read_header_work,
        [(landing, key) for key in timed_keys],
        timeout_s=min(_PROBE_S, spec.work_timeout_s),
        variables=store_variables(landing),
    )
    works: dict[str, DecodeWork] = {}  # by key
    for key, outcome in zip(timed_keys, outcomes, strict=True):
        if outcome.value is None:  # the audit finds out what is wrong with the object
            continue
        duration_s, pixels, values = outcome.value
        works[key] = DecodeWork(duration_s=duration_s, pixels=pixels, values=values)
    limits = list[TimeLimit]()
    for row in rows:
        work = works.get(row["key"])
        limits.append(_limit(row["key"], work, spec, tell))
    return limits


def media_row_limits(
    rows: Sequence[Mapping[str, Any]],
    spec: DatasetSpec,
    tell: Tell,
) -> list[TimeLimit]:
    """Return the limits of decoded objects, from their rows of `media`. tell: as in `container_limits`."""
    limits = list[TimeLimit]()
    for row in rows:
        work = None
        if row["kind"] in ("audio", "video"):
            work = media_work(row)
        limits.append(_limit(row["key"], work, spec, tell))
    return limits


def _limit(
    key: str,
    work: DecodeWork | None,
    spec: DatasetSpec,
    tell: Tell,
) -> TimeLimit:
    usual_s = spec.work_timeout_s
    if work is None:
        return TimeLimit(seconds=usual_s)
    seconds = work.limit_s(usual_s, spec.max_work_timeout_s)
    if seconds > _MIN_RATIO_TO_LOG * usual_s:
        tell(f"{key!r}: decoding {work}, limit {seconds:,.0f} s")
    return TimeLimit(seconds=seconds, work=work)
