"""Archives, and places that hold them."""

import pytest

import loader
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from tests.penstock.formats.builders import tars


@pytest.fixture
def root(tmp_path):
    return loader.Root(tmp_path / "root")


@pytest.fixture
def three(tmp_path):
    """A folder of three archives with 40 samples each, which a registration does not seal."""
    tars.fill(
        tmp_path / "tars", {f"{k:03}.tar": [tars.JUMPED, *tars.number_samples(k, 40)] for k in range(3)}
    )
    return tmp_path / "tars"


@pytest.fixture
def sealed_version(root, three):
    """The version of three archives, registered and sealed."""
    version = register(root, "webdataset", three, "photos").version
    assert seal(version).failures == []
    return root.open("photos")


@pytest.fixture
def aws(s3, monkeypatch):
    """The S3 server, as the environment names it to those who open a place there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    return s3
