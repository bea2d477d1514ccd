"""Releases of versions through their gate."""

from pathlib import Path

import dagster as dg
import pytest

from assets.gate_settings import Gate
from assets.release.version_asset import version_asset
from resources.storage import RootResource
from tests.assets.release.gated import Release


@pytest.fixture
def release(tmp_path: Path, instance: dg.DagsterInstance) -> Release:
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}

    def go(gate: Gate) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [version_asset("demo", gate)],
            instance=instance,
            resources={"root": RootResource(url=str(tmp_path / "root"))},
            run_config=quiet,
            raise_on_error=False,
        )

    return go
