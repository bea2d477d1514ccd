"""Dagster events of a stage's run: failures without a retry, the check's result, the materialization."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from penstock.stages import StageRecord

from .report import data_version

Metadata = Mapping[str, dg.MetadataValue[Any]]


@contextmanager
def as_failures(*errors: type[Exception]) -> Iterator[None]:
    """Turn these errors into a `dg.Failure` without a retry."""
    try:
        yield
    except errors as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def check_and_materialize(
    record: StageRecord, check: str, checked: Metadata, shown: Metadata
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
    """Yield the check's result, then the materialization, with their metadata.

    Raises: dg.Failure if the record's verdict is not `published`.
    """
    passed = record.verdict == "published"
    yield dg.AssetCheckResult(check_name=check, passed=passed, metadata=checked)
    if not passed:
        raise dg.Failure(record.reason, metadata=dict(checked), allow_retries=False)
    yield dg.MaterializeResult(metadata=dict(shown), data_version=data_version(record))
