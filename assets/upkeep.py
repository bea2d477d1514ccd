"""How long a dataset may take before a person is told: see `alarms`.

What is done for a dataset by the clock, and for whom: its tenant, schedules, and how fresh versions should be.
"""

import math
import re
from dataclasses import dataclass
from datetime import timedelta

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """tenant: who the dataset is worked for, "" for nobody in particular; the run queue's limits are by it. timezone:
    of the crons, a name of the IANA database. release, refresh, reconcile: cron of the schedule, "" for none.
    refresh_partitions: batches that a tick of the refresh asks for at most. fresh_within, warn_within: how old the
    newest version may become, None for no policy; that of a dataset that nothing arrives for grows old as well.

    Raises: ValueError.
    """

    tenant: str = ""
    timezone: str = "UTC"
    release: str = "0 3 * * *"
    refresh: str = "0 1 * * *"
    reconcile: str = "0 5 * * 6"
    refresh_partitions: int = 64
    fresh_within: timedelta | None = None
    warn_within: timedelta | None = None

    def __post_init__(self) -> None:
        if self.tenant and not _TENANT.fullmatch(self.tenant):
            raise ValueError(
                f"tenant={self.tenant!r}; accepted: letters, digits, '.', '_' and '-', at most 63"
            )
        if not 1 <= self.refresh_partitions < math.inf:
            raise ValueError(f"refresh_partitions={self.refresh_partitions}; accepted: 1 or more")
        if self.warn_within and not (self.fresh_within and self.warn_within < self.fresh_within):
            raise ValueError(
                f"warn_within={self.warn_within}; accepted: less than fresh_within, which it needs"
            )


UPKEEP = Upkeep()


_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of a dataset; None: never told. All in seconds.

    backlog_s: how long what landed may wait for being trainable or stopped. Six hours: longer than any run of a batch
    that is not stuck (8 hours of media take one at the slowest rate measured), and a night is not lost. silence_s: how
    long nothing may land; nobody knows how often data come, so that it is None. version_s: how old the newest
    version may be.
    """

    backlog_s: float | None = 6 * _HOUR_S
    silence_s: float | None = None
    version_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("backlog_s", "silence_s", "version_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # nothing is ever above NaN
                raise ValueError(f"{name}={value}; accepted: seconds above 0, or None")


LIMITS = Limits()
