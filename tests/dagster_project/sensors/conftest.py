"""What the sensors' tests share."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """Dagster's own databases, on disk: a tick reads what another one wrote."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(
        str(tmp_path / "dagster"), overrides={"telemetry": {"enabled": False}}
    ) as made:
        yield made
