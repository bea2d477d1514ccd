"""Time limits: how long each object of a batch may take, told before it begins."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.storage import Store
from penstock.compute.pool import Compute, Failure
from penstock.compute.pool.environment import store_variables

from ..media.decode_time import DecodeWork, declared_work, work_of
from ..spec import DatasetSpec

Tell = Callable[[str], object]
log = logging.getLogger(__name__)

_LOOK_S = 60.0
"""Limit in seconds of reading a container's length: some ranges of bytes, and nothing is decoded to its end."""

_WORTH_SAYING = 1.5
"""Multiple of `work_timeout_s` above which a limit is told."""

_TIMED = ("audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limit of one object."""

    seconds: float
    """Seconds that the object may take."""
    work: DecodeWork | None = None
    """Work that is known beforehand; None for unknown."""

    def reason(self, failure: Failure) -> str:
        """Return why there is no result of an object that no worker survived."""
        if failure.code != "timeout" or self.work is None:
            return failure.summary
        return (
            f"{failure.summary}, decoding {self.work}; raise work_timeout_s of its DatasetSpec, or "
            "max_work_timeout_s, if it is sound and the machine slow"
        )


def limits_told(
    landing: Store, compute: Compute, rows: Sequence[Mapping[str, Any]], spec: DatasetSpec, tell: Tell
) -> list[Limit]:
    """Return limits of objects that nobody has decoded yet, by their containers. rows: key and mime of each."""
    timed = [number for number, row in enumerate(rows) if row["mime"].startswith(_TIMED)]
    places = [(landing, rows[number]["key"]) for number in timed]
    found: dict[int, DecodeWork] = {}
    outcomes = compute.map(
        declared_work,
        places,
        timeout_s=min(_LOOK_S, spec.work_timeout_s),
        variables=store_variables(landing),
    )
    for number, outcome in zip(timed, outcomes, strict=True):
        if outcome.value is not None:
            duration_s, pixels, values = outcome.value
            found[number] = DecodeWork(duration_s=duration_s, pixels=pixels, values=values)
    return [_limit(row["key"], found.get(number), spec, tell) for number, row in enumerate(rows)]


def limits_decoded(rows: Sequence[Mapping[str, Any]], spec: DatasetSpec, tell: Tell) -> list[Limit]:
    """Return limits of objects with these rows of the media table."""
    return [
        _limit(row["key"], work_of(row) if row["kind"] in ("audio", "video") else None, spec, tell)
        for row in rows
    ]


def _limit(key: str, work: DecodeWork | None, spec: DatasetSpec, tell: Tell) -> Limit:
    if work is None:
        return Limit(seconds=spec.work_timeout_s)
    seconds = work.limit_s(spec.work_timeout_s, spec.max_work_timeout_s)
    if seconds > _WORTH_SAYING * spec.work_timeout_s:
        tell(f"{key!r}: decoding {work}, limit {seconds:,.0f} s")
    return Limit(seconds=seconds, work=work)
