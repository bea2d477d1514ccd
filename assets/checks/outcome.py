"""Outcome of a check."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from loader.errors import InvalidSpec
from penstock.approvals import stops

if TYPE_CHECKING:
    from dagster import AssetCheckSeverity

Severity = Literal["error", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Outcome of one check.

    Raises: ValueError for an unknown severity, or if `passed` or `approvable` is not a boolean.
    """

    name: str
    passed: bool
    """True if the check passed."""
    severity: "Severity | AssetCheckSeverity" = "error"
    """"error" stops the publication if the check fails; "warn" only shows. `AssetCheckSeverity` is also accepted."""
    value: float | None = None
    """Measured value."""
    limit: float | None = None
    """Allowed value."""
    explanation: str = ""
    """One readable sentence."""
    table_markdown: str = ""
    """Details as a Markdown table or ""."""
    approvable: bool = True
    """True if a person may approve its failure (`penstock approve`)."""
    findings: tuple[Mapping[str, Any], ...] = ()
    """Findings as JSON without floats."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "severity", _severity(self.severity))
        for name in ("passed", "approvable"):
            value = getattr(self, name)
            # Accept only booleans: "no" and NaN would count as true.
            if not isinstance(value, bool | np.bool_):
                raise InvalidSpec(
                    f"check {self.name!r}: {name}={value!r}; accepted: True or False",
                    what=name,
                    where=f"check {self.name!r}",
                    given=value,
                    accepted=[True, False],
                )
            object.__setattr__(self, name, bool(value))
        for name in ("value", "limit"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value))  # NumPy numbers print differently

    @property
    def stops(self) -> bool:
        return stops({"passed": self.passed, "severity": self.severity})

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON without floats, for a stage record."""
        return {
            "name": self.name,
            "passed": self.passed,
            "severity": self.severity,
            # repr: canonical JSON has no floats, and the text gives the same float back.
            "value": None if self.value is None else repr(self.value),
            "limit": None if self.limit is None else repr(self.limit),
            "explanation": self.explanation,
            "table_markdown": self.table_markdown,
            "approvable": self.approvable,
            "findings": [dict(one) for one in self.findings],
        }

    @staticmethod
    def from_json(body: dict[str, Any]) -> "CheckResult":
        """Return a result from `to_json` output; missing keys get defaults, an unknown severity is "error"."""
        numbers = {name: None if body[name] is None else float(body[name]) for name in ("value", "limit")}
        known = {
            # Only a true boolean opens the gate, whatever a damaged record holds.
            "passed": body["passed"] is True,
            "severity": "warn" if body["severity"] == "warn" else "error",
            "approvable": body.get("approvable", True) is True,
            "findings": tuple(body.get("findings", ())),
        }
        return CheckResult(**{**body, **numbers, **known})


def _severity(severity: Any) -> Severity:
    """Return "error" or "warn". severity: one of both, or Dagster's AssetCheckSeverity. Raises: InvalidSpec."""
    word = severity
    if isinstance(severity, Enum):
        from dagster import AssetCheckSeverity  # a caller that has such a value has imported it before

        word = None  # an enum that also is a text would pass otherwise
        if isinstance(severity, AssetCheckSeverity):
            word = severity.value.lower()
    if isinstance(word, str) and word == "error":
        return "error"
    if isinstance(word, str) and word == "warn":
        return "warn"
    raise InvalidSpec(
        f"severity={severity!r}; accepted: 'error', 'warn', or Dagster's AssetCheckSeverity",
        what="severity",
        given=severity,
        accepted=["error", "warn"],
    )


def run_checks(named: Mapping[str, Callable[[], CheckResult]]) -> tuple[tuple[CheckResult, ...], bool]:
    """Return the results in order, renamed to the keys of `named`, and whether any check could not run.

    Such a check yields a failed result that cannot be approved.
    """
    results = []
    broken = False
    for name, check in named.items():
        try:
            result = check()
            if not isinstance(result, CheckResult):
                raise TypeError(f"it returned {result!r}; accepted: a CheckResult of assets.checks")
        except Exception as error:  # noqa: BLE001 - a user's check; whatever it raises closes the gate
            reason = f"the check could not run: {type(error).__name__}: {error}"[:500]
            result = CheckResult(
                name=name,
                passed=False,
                explanation=reason,
                approvable=False,
            )
            broken = True
        results.append(replace(result, name=name))  # Dagster shows it under this name
    return tuple(results), broken
