"""Checks before a publication: functions on tables, and a suite of expectations. Stages run them and fail closed."""

from .expectations import CheckReport, Expectation, ExpectationResult, run_expectations
from .near_duplicates import near_duplicates_across_splits
from .outcome import CheckResult, run_checks
from .tables import audio_rate, counts, nulls, reject_rate, schema

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
