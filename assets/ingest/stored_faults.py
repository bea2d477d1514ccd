"""Recognise stored verdicts on data that errors of code, machine or store caused, so that no stage reuses them.

Earlier releases recorded such errors as refusals; today they raise (`penstock.compute.pool.is_fault`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_FAULTS = frozenset(
    {
        "ImportError",
        "ModuleNotFoundError",
        "MissingDependency",
        "PackageClash",
        "NameError",
        "InvalidRuntime",
        "Unpicklable",
        "CodeMismatch",
        "WorkerFailed",
        "StoreError",
        "Fault",
        "Forbidden",
        "ForkedStore",
        "Throttled",
        "Transient",
        "PermissionError",
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "TimeoutError",
    }
)
"""Names of errors that are not a verdict on any data."""
_FEATURIZER_FAULTS = frozenset({"AttributeError", "TypeError", "NotImplementedError", "InvalidField"})
"""Names of errors that are not a verdict if a featurizer raises them."""
_ERROR = re.compile(r"(?:the same bytes as .+: )?((?:\w+\.)*)(\w+):")
"""A reason begins with the error's module and class; a copy's reason names its original before them."""
_FFMPEG = "av."
"""Module of errors that name damage by the operating system's numbers, which `is_fault` therefore ignores."""
_ERRNO = re.compile(r"\[Errno (?:5|12|13|1|23|24|28|30|116|122)\] ")  # as `is_fault` lists them, on Linux
_NO_HEIC = "HEIC needs a decoder: pip install"


def is_stored_fault(code: str, reason: str) -> bool:
    """Return whether a stored refusal came from code, machine or store."""
    if code in _FAULTS or reason.startswith(_NO_HEIC):
        return True
    return _names_error(code, reason, _FAULTS)


def is_stored_feature_fault(code: str, reason: str) -> bool:
    """Return whether a featurizer's stored refusal came from code, machine or store."""
    if is_stored_fault(code, reason):
        return True
    return _names_error(code, reason, _FEATURIZER_FAULTS)


def _names_error(code: str, reason: str, errors: frozenset[str]) -> bool:
    """Return whether a refusal by an exception names one of these errors, or an error of the machine."""
    if code != "exception":
        return False
    error = _ERROR.match(reason)
    if error is not None:
        module, name = error.groups()
        if module.startswith(_FFMPEG):  # its errors name damage, even those with an errno
            return False
        if name in errors:
            return True
    return _ERRNO.search(reason) is not None


def has_stored_faults(refusals: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether any row of `refusals` came from code, machine or store."""
    return any(is_stored_fault(row["code"], row["reason"]) for row in refusals)


def has_feature_faults(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether any row of a feature's table came from code, machine or store."""
    return any(is_stored_feature_fault(row["code"], row["reason"]) for row in rows)


def is_faulty_exclusion(reason: str) -> bool:
    """Return whether a featurizer's fault left a sample out. reason: '<featurizer>: <code>: <reason>'."""
    _, _, refusal = reason.partition(": ")
    code, _, text = refusal.partition(": ")
    return is_stored_feature_fault(code, text)
