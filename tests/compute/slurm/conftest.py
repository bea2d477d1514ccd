"""Slurm of four nodes for this folder's tests: every one of them is marked `slurm`."""

import pytest

from tests.servers.slurm import slurm


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory):
    """Four nodes of two processors; a test that kills one brings it back."""
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster
