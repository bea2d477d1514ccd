"""How long each object of a batch may take, said before it strikes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.storage import Store
from resources.compute import Compute, Failure
from resources.store_variables import store_variables

from ..media.decode_time import Work, told_of, work_of
from ..spec import DatasetSpec

Tell = Callable[[str], object]
log = logging.getLogger(__name__)

_LOOK_S = 60.0
"""For what a container says of its length: some ranges of bytes are read, and nothing is decoded to its end."""

_WORTH_SAYING = 1.5
"""Times `work_timeout_s`: a limit that is hardly above it is no news."""

_TIMED = ("audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """seconds: that the object may take; work: what is known of it beforehand, None for nothing."""

    seconds: float
    work: Work | None = None

    def reason(self, failure: Failure) -> str:
        """Why there is no result, of an object that no worker survived."""
        if failure.code != "timeout" or self.work is None:
            return failure.summary
        return (
            f"{failure.summary}, decoding {self.work}; raise work_timeout_s of its DatasetSpec, or "
            "max_work_timeout_s, if it is sound and the machine slow"
        )


def limits_told(
    landing: Store, compute: Compute, rows: Sequence[Mapping[str, Any]], spec: DatasetSpec, tell: Tell
) -> list[Limit]:
    """Of objects that nobody has decoded yet, by what their containers say. rows: key and mime of each."""
    timed = [number for number, row in enumerate(rows) if row["mime"].startswith(_TIMED)]
    places = [(landing, rows[number]["key"]) for number in timed]
    found: dict[int, Work] = {}
    outcomes = compute.map(
        told_of,
        places,
        timeout_s=min(_LOOK_S, spec.work_timeout_s),
        variables=store_variables(landing),
    )
    for number, outcome in zip(timed, outcomes, strict=True):
        if outcome.value is not None:
            duration_s, pixels, values = outcome.value
            found[number] = Work(duration_s=duration_s, pixels=pixels, values=values)
    return [_limit(row["key"], found.get(number), spec, tell) for number, row in enumerate(rows)]


def limits_decoded(rows: Sequence[Mapping[str, Any]], spec: DatasetSpec, tell: Tell) -> list[Limit]:
    """Of objects with these rows of the media table."""
    return [
        _limit(row["key"], work_of(row) if row["kind"] in ("audio", "video") else None, spec, tell)
        for row in rows
    ]


def _limit(key: str, work: Work | None, spec: DatasetSpec, tell: Tell) -> Limit:
    if work is None:
        return Limit(seconds=spec.work_timeout_s)
    seconds = work.limit_s(spec.work_timeout_s, spec.max_work_timeout_s)
    if seconds > _WORTH_SAYING * spec.work_timeout_s:
        tell(f"{key!r}: decoding {work}, limit {seconds:,.0f} s")
    return Limit(seconds=seconds, work=work)
