"""s3fs, gcsfs and adlfs over a server that misbehaves: they repeat requests, and what is stored decides."""

import pytest

from loader.errors import AlreadyExists, Changed, Forbidden, ObjectNotFound
from loader.storage import Store, open_store

DATA = bytes(range(256)) * 40


@pytest.fixture
def fsspec_options(faulty, protocol: str, faulty_options) -> dict[str, object]:
    at = faulty.endpoint
    if protocol == "s3":
        own: dict[str, object] = {"key": "k", "secret": "ssss", "client_kwargs": {"endpoint_url": at}}
    elif protocol == "gs":
        own = {"token": "anon", "endpoint_url": at}
    else:
        key = faulty_options["account_key"]
        own = {
            "account_name": "lab",
            "connection_string": f"AccountName=lab;AccountKey={key};BlobEndpoint={at}/lab",
        }
    return {"fsspec": own, "retry_base_s": 0.001, "retry_cap_s": 0.002, "retry_deadline_s": 20}


@pytest.fixture
def fsspec_store(protocol: str, fsspec_options) -> Store:
    return open_store(f"{protocol}://bucket", fsspec_options)


@pytest.mark.parametrize("fault", ["commit-drop", "drop"])
def test_a_create_is_decided_by_what_is_stored(faulty, fsspec_store, fault):
    """The client repeats it, and its own first write refuses the second: that is success."""
    faulty.faults.append(fault)
    fsspec_store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == {"log/1": b"ours"}
    with pytest.raises(AlreadyExists):
        fsspec_store.put_if_absent("log/1", b"theirs")
    assert faulty.origin.held() == {"log/1": b"ours"}


def test_a_replaced_object_is_changed(faulty, fsspec_store):
    faulty.origin.hold("k", DATA)
    pinned = fsspec_store.get_range("k", 0, 1).etag
    faulty.origin.hold("k", DATA + b"more")
    with pytest.raises(Changed):
        fsspec_store.get_range("k", 0, 1, pinned)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_forbidden_and_shows_no_secret(faulty, fsspec_store, protocol, status):
    code = {"s3": b"AccessDenied", "gs": b"Forbidden", "az": b"AuthenticationFailed"}[protocol]
    headers = {"content-type": "application/xml", "x-ms-error-code": code.decode()}
    faulty.origin = lambda _: (
        status,
        b"<Error><Code>" + code + b"</Code><Message>PLANTED</Message></Error>",
        headers,
    )
    with pytest.raises(Forbidden) as caught:
        fsspec_store.get("k")
    assert "ssss" not in str(caught.value)


def test_missing_is_not_found(faulty, fsspec_store):
    with pytest.raises(ObjectNotFound):
        fsspec_store.get("k")
