"""Upkeep of a dataset: owners, tenant, schedules, freshness, and delays that alert a person."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta

_OWNER = re.compile(r"[^@\s:]+@[^@\s:]+\.[^@\s:]+|team:[A-Za-z0-9_.-]+")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Scheduled work, owners and tenant, and the accepted age of versions. Raises: ValueError."""

    tenant: str = ""
    """Tenant for the run queue's limits; "" for none."""
    owners: tuple[str, ...] = ()
    """Owners in Dagster's catalog: "name@lab.example" or "team:vision"."""
    timezone: str = "UTC"
    """Time zone of the crons, an IANA name."""
    release: str = "0 3 * * *"
    """Cron of the release; "" for none."""
    refresh: str = "0 1 * * *"
    """Cron of the refresh; "" for none."""
    reconcile: str = "0 5 * * 6"
    """Cron of the reconcile job; "" for none."""
    refresh_partitions: int = 64
    """Most batches that one refresh tick requests."""
    fresh_within: timedelta | None = None
    """Accepted age of the newest version, or None."""
    warn_within: timedelta | None = None
    """Age at which Dagster warns, below `fresh_within`, or None."""

    def __post_init__(self) -> None:
        if self.tenant and not _TENANT.fullmatch(self.tenant):
            raise ValueError(
                f"tenant={self.tenant!r}; accepted: letters, digits, '.', '_' and '-', at most 63"
            )
        wrong = [one for one in self.owners if not _OWNER.fullmatch(one)]
        if wrong:
            raise ValueError(
                f"owners={self.owners!r}; accepted: a tuple of e-mail addresses and of 'team:<name>'"
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
    """Delays in seconds after which a person is alerted; None never alerts. Raises: ValueError."""

    backlog_s: float | None = 6 * _HOUR_S
    """Longest seconds from landing until an object is trainable or its batch is stopped. Six hours exceed any healthy
    run: 8 hours of media take one hour at the slowest measured rate.
    """
    silence_s: float | None = None
    """Longest seconds without arrivals."""
    version_s: float | None = None
    """Largest age of the newest version."""

    def __post_init__(self) -> None:
        for name in ("backlog_s", "silence_s", "version_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # a delay never exceeds NaN
                raise ValueError(f"{name}={value}; accepted: seconds above 0, or None")


LIMITS = Limits()
