"""Every verb and every error, the same on every backend."""

import pytest

from loader.storage.spec import BACKENDS
from loader.testing.stores import StoreConformance

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs over aiohttp


def test_every_scheme_has_a_conformance_backend_or_its_own_servers_tests():
    in_this_suite = {"file", "local", "memory", "s3", "s3a"}
    servers_elsewhere = {"gs", "gcs", "az", "abfs", "abfss"}
    assert set(BACKENDS) == in_this_suite | servers_elsewhere


class TestStores(StoreConformance):
    """The fixture `backend` has the stores of this package, each over its servers (conftest.py)."""

    @pytest.fixture
    def worker_environment(self, credentials_outside: None) -> None:
        """Credentials of the backend's server."""
