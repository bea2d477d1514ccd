"""A Ray cluster for this folder's tests: every one of them is marked `ray`."""

import pytest

from tests.servers.ray_nodes import ray_nodes


@pytest.fixture(scope="module")
def ray_cluster():
    """A head and two nodes of two processors."""
    with ray_nodes() as nodes:
        yield nodes
