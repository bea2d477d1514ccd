"""A Ray cluster for this folder's tests: every one of them is marked `ray`."""

import tempfile
from pathlib import Path

import pytest

from tests.compute.job_checks import REPOSITORY
from tests.servers.ray_nodes import TOKEN, ray_nodes

VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(REPOSITORY),
}


@pytest.fixture(scope="module")
def ray_cluster():
    """A head and two nodes of two processors."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, pytest.MonkeyPatch.context() as patched:
        for name, value in {**VARIABLES, "RAY_TMPDIR": folder}.items():
            patched.setenv(name, value)
        with ray_nodes(Path(folder)) as nodes:
            yield nodes
