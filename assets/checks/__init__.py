"""Gate checks: functions on tables, and suites of expectations. A check that cannot run counts as failed."""

from .expectations import CheckReport, Expectation, ExpectationResult, run_expectations
from .outcome import CheckResult, run_checks
from .tables import audio_rate, counts, near_duplicates_across_splits, nulls, reject_rate, schema

__all__ = [
    "CheckReport",
    "CheckResult",
    "Expectation",
    "ExpectationResult",
    "audio_rate",
    "counts",
    "near_duplicates_across_splits",
    "nulls",
    "reject_rate",
    "run_checks",
    "run_expectations",
    "schema",
]
