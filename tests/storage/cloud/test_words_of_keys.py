"""Errors of stores are told apart by their kind: the words of a key decide nothing."""

import pytest

from loader.errors import ObjectNotFound, Throttled
from loader.storage import open_store

WORDS = [
    *("credential-missing.jpg", "no credentials/x", "latest/meta-data/x", "x/169.254.169.254", "401", "404"),
    *("the region is wrong; expecting 'eu-west-1'", "x status code: 503 y", "x status code: 416 y"),
    *("<Code>SlowDown</Code>", "<Code>NoSuchBucket</Code>", "credential provider TransportError"),
    *("HTTP error", "configured region", "PermanentRedirect", "AccessDenied", "Forbidden: x", "(401) y"),
    *("Wanted range starting at", "timeout", "location a not found: Error performing GET http:/x y"),
]


@pytest.mark.parametrize("kind", ["obstore", "headers", "fsspec"])
def test_missing_object_is_missing_whatever_its_key_says(s3_options, kind):
    options = {**s3_options, "retry_deadline_s": 0}
    if kind == "fsspec":
        own = {
            "key": options["key"],
            "secret": options["secret"],
            "client_kwargs": {"endpoint_url": options["endpoint_url"]},
        }
        options = {"fsspec": own, "retry_deadline_s": 0}
    if kind == "headers":
        options["direct_reads"] = False
    store = open_store("s3://bucket/a folder of credentials that are missing", options)
    for key in WORDS:
        for ask in (store.get, store.head, lambda name: store.get_range(name, 5, 3)):
            with pytest.raises(ObjectNotFound):
                ask(key)


@pytest.mark.parametrize("protocol", ["s3", "gs", "az"])
def test_slow_store_is_slow_whatever_the_key_says(faulty, faulty_options, protocol):
    store = open_store(f"{protocol}://bucket", {**faulty_options, "retry_deadline_s": 0})
    for key in ("credential-missing.jpg", "no credentials", "x status code: 403 y", "404"):
        faulty.faults.clear()
        faulty.faults.extend([503] * 3)
        with pytest.raises(Throttled):
            store.head(key)
