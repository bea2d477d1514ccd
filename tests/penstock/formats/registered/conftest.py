"""Archives, and places that hold them."""

from pathlib import Path

import pytest

import loader


@pytest.fixture(scope="session")
def tars(shared):
    """tars.py."""
    return shared("penstock/formats/registered/tars")


@pytest.fixture
def root(tmp_path):
    return loader.Root(tmp_path / "root")


@pytest.fixture
def three(tmp_path, tars):
    """A folder of three archives with 40 samples each, which a registration does not seal."""
    tars.fill(tmp_path / "tars", {f"{k:03}.tar": [tars.JUMPED, *tars.numbered(k, 40)] for k in range(3)})
    return tmp_path / "tars"


@pytest.fixture(scope="session")
def registering(shared):
    """registering(job, ...) -> [(exit status, what it says)] of registrations by processes of their own."""
    forks = shared("dataset/forks")
    with forks.processes(str(Path(__file__).parent / "child.py")) as do:
        yield lambda *jobs: [tuple(one) for one in do(*({**job, "forks": forks.__file__} for job in jobs))]


@pytest.fixture
def aws(s3, monkeypatch):
    """The S3 server, as the environment names it to those who open a place there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    return s3
