"""Outcome of a check."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from penstock.approve import stops

if TYPE_CHECKING:
    from dagster import AssetCheckSeverity

Severity = Literal["error", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Outcome of one check.

    Raises: ValueError for another severity, and for a `passed` or `approvable` that is neither True nor False.
    """

    name: str
    """Name of the check."""
    passed: bool
    """True where the check passed."""
    severity: "Severity | AssetCheckSeverity" = "error"
    """A failed "error" stops the publication; a failed "warn" is shown. Dagster's `AssetCheckSeverity` is taken as
    these."""
    value: float | None = None
    """Measured value; None for none."""
    limit: float | None = None
    """Allowed value; None for none."""
    explanation: str = ""
    """One sentence for a person."""
    table_markdown: str = ""
    """Details as a table; "" for none."""
    approvable: bool = True
    """True where a person may let a batch pass that failed the check (`penstock approve`)."""
    findings: tuple[Mapping[str, Any], ...] = ()
    """Each finding as plain JSON without floats."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "severity", _severity(self.severity))
        for name in ("passed", "approvable"):
            value = getattr(self, name)
            # Of anything else nobody knows what it means: "no" and NaN are true.
            if not isinstance(value, bool | np.bool_):
                raise ValueError(f"check {self.name!r}: {name}={value!r}; accepted: True or False")
            object.__setattr__(self, name, bool(value))
        for name in ("value", "limit"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))  # a number of NumPy has another `repr`

    @property
    def stops(self) -> bool:
        return stops({"passed": self.passed, "severity": self.severity})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON without floats, as a stage record holds it."""
        return {
            "name": self.name,
            "passed": self.passed,
            "severity": self.severity,
            "value": None if self.value is None else repr(self.value),
            "limit": None if self.limit is None else repr(self.limit),
            "explanation": self.explanation,
            "table_markdown": self.table_markdown,
            "approvable": self.approvable,
            "findings": [dict(one) for one in self.findings],
        }

    @staticmethod
    def from_json(body: dict[str, Any]) -> "CheckResult":
        """Return the inverse of `to_json`; a key that an earlier release did not write has its default.

        A severity that is not known to be harmless stops: an earlier release took any word.
        """
        numbers = {name: None if body[name] is None else float(body[name]) for name in ("value", "limit")}
        known = {
            "passed": body["passed"] is True,
            "severity": "warn" if body["severity"] == "warn" else "error",
            "approvable": body.get("approvable", True) is True,
            "findings": tuple(body.get("findings", ())),
        }
        return CheckResult(**{**body, **numbers, **known})


def _severity(given: Any) -> Severity:
    """Return the severity as a word. Raises: ValueError."""
    word = given
    if isinstance(given, Enum):
        from dagster import AssetCheckSeverity  # only where somebody gave it, who has imported it

        word = given.value.lower() if isinstance(given, AssetCheckSeverity) else None
    if isinstance(word, str) and word in get_args(Severity):
        return "warn" if word == "warn" else "error"
    raise ValueError(f"severity={given!r}; accepted: 'error', 'warn', or Dagster's AssetCheckSeverity")


def run_checks(named: Mapping[str, Callable[[], CheckResult]]) -> tuple[tuple[CheckResult, ...], bool]:
    """Return every result in this order, under its name here, and whether a check could not run.

    Such a check is a failed result which nobody may approve.
    """
    results, broken = [], False
    for name, check in named.items():
        try:
            result = check()
            if not isinstance(result, CheckResult):
                raise TypeError(f"it gave {result!r}; accepted: a CheckResult of assets.checks")
        except Exception as error:  # noqa: BLE001 - a check may be anybody's code; whatever it raises closes the gate
            said = f"the check could not run: {type(error).__name__}: {error}"[:500]
            result, broken = CheckResult(name=name, passed=False, explanation=said, approvable=False), True
        results.append(replace(result, name=name))  # Dagster was told this name
    return tuple(results), broken
