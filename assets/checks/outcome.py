"""What a check says."""

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check. value, limit: what was measured and what is allowed; explanation: one sentence for a person.

    severity: a failed "error" stops what would be published, a failed "warn" is shown. table_markdown: details.
    """

    name: str
    passed: bool
    severity: Severity = "error"
    value: float | None = None
    limit: float | None = None
    explanation: str = ""
    table_markdown: str = ""

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
        }

    @staticmethod
    def from_json(body: dict[str, Any]) -> "CheckResult":
        """The inverse of `to_json`."""
        numbers = {name: None if body[name] is None else float(body[name]) for name in ("value", "limit")}
        return CheckResult(**{**body, **numbers})
