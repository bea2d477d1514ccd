"""How long a dataset may take before a person is told: see `alarms`."""

import math
from dataclasses import dataclass

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
