"""What a check says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check. value, limit: what was measured and what is allowed; explanation: one sentence for a person.

    severity: a failed "error" stops what would be published, a failed "warn" is shown. table_markdown: details.
    approvable: whether a person may let a batch pass that failed it (`penstock approve`). findings: each thing that
    was found, as plain JSON without floats.
    """

    name: str
    passed: bool
    severity: Severity = "error"
    value: float | None = None
    limit: float | None = None
    explanation: str = ""
    table_markdown: str = ""
    approvable: bool = True
    findings: tuple[Mapping[str, Any], ...] = ()

    @property
    def stops(self) -> bool:
        return not self.passed and self.severity == "error"

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
        """The inverse of `to_json`; what an earlier release did not write has its default."""
        numbers = {name: None if body[name] is None else float(body[name]) for name in ("value", "limit")}
        findings = tuple(body.get("findings", ()))
        return CheckResult(**{**body, **numbers, "findings": findings})


def run_checks(named: Mapping[str, Callable[[], CheckResult]]) -> tuple[tuple[CheckResult, ...], bool]:
    """Every result in this order, under the name that it has here, and whether a check could not run: that is a failed
    result which nobody may approve."""
    results, broken = [], False
    for name, check in named.items():
        try:
            result = check()
        except Exception as error:  # noqa: BLE001 - a check may be anybody's code; whatever it raises closes the gate
            said = f"the check could not run: {type(error).__name__}: {error}"[:500]
            result, broken = CheckResult(name=name, passed=False, explanation=said, approvable=False), True
        results.append(replace(result, name=name))  # Dagster was told this name
    return tuple(results), broken
