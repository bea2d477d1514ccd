"""What a worker needs for reading a store is its provider's own variables."""

from fnmatch import fnmatchcase

import dagster as dg
import pytest

from loader.storage import open_store
from loader.storage.mirror import MirroredStore
from penstock.compute.pool.environment import store_variables
from resources.storage import open_place

NAMES = (
    "AWS_SECRET_ACCESS_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_STORAGE_KEY",
    "HF_TOKEN",
    "HTTPS_PROXY",
)


def variable_names(*places) -> list[str]:
    return [name for name in NAMES if any(fnmatchcase(name, one) for one in store_variables(*places))]


@pytest.mark.parametrize(
    ("place", "names"),
    [
        *(("/data/root", []), ("file:///data/root", []), ("memory://x", [])),
        ("s3://bucket/x", ["AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"]),
        ("gs://bucket/x", ["GOOGLE_APPLICATION_CREDENTIALS", "HTTPS_PROXY"]),
        ("abfss://c@a.dfs.core.windows.net/x", ["AZURE_STORAGE_KEY", "HTTPS_PROXY"]),
        ("simplecache::s3://bucket/x", ["AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"]),
        ("hf://models/x", ["HF_TOKEN", "HTTPS_PROXY"]),
        ("https://host/x", ["HTTPS_PROXY"]),
    ],
)
def test_by_its_address(place, names) -> None:
    assert variable_names(place) == names


def test_every_member_of_a_root_with_mirrors(tmp_path) -> None:
    stores = [open_store(str(tmp_path)), open_store("s3://bucket/x"), open_store("gs://bucket/x")]
    mirrored = MirroredStore(stores, lambda store: store.url)
    assert variable_names(mirrored) == [
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "HTTPS_PROXY",
    ]


def test_those_that_a_source_names(monkeypatch) -> None:
    monkeypatch.setenv("PARTNER_KEY", "k")
    monkeypatch.setenv("PARTNER_SECRET", "s")
    options = {
        "key": dg.EnvVar("PARTNER_KEY"),
        "secret": dg.EnvVar("PARTNER_SECRET"),
        "region": "eu-central-1",
    }
    found = store_variables(open_place("s3://bucket/x", options))
    assert {"PARTNER_KEY", "PARTNER_SECRET"} <= found
    assert "eu-central-1" not in found
