"""s3fs, gcsfs and adlfs over a server that misbehaves: they repeat requests, and what is stored decides."""

import pickle

import pytest

from loader.errors import AlreadyExists, Changed, Forbidden, InvalidStore, ObjectNotFound
from loader.storage import Store, open_store
from tests.servers.processes import python

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
def test_create_is_decided_by_what_is_stored(faulty, fsspec_store, fault):
    """The client repeats it, and its own first write refuses the second: that is success."""
    faulty.faults.append(fault)
    fsspec_store.put_if_absent("log/1", b"ours")
    assert faulty.origin.held() == {"log/1": b"ours"}
    with pytest.raises(AlreadyExists):
        fsspec_store.put_if_absent("log/1", b"theirs")
    assert faulty.origin.held() == {"log/1": b"ours"}


def test_replaced_object_is_changed(faulty, fsspec_store):
    faulty.origin.hold("k", DATA)
    pinned = fsspec_store.get_range("k", 0, 1).etag
    faulty.origin.hold("k", DATA + b"more")
    with pytest.raises(Changed):
        fsspec_store.get_range("k", 0, 1, pinned)


@pytest.mark.parametrize("status", [401, 403])
def test_refusal_is_forbidden_and_shows_no_secret(faulty, fsspec_store, protocol, status):
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


@pytest.mark.parametrize("protocol", ["az"])
def test_container_is_looked_for_once_and_only_where_something_was_missing(faulty, fsspec_store):
    """What adlfs lists and looks up does not tell whether there is a container."""
    container = "GET /lab/bucket?restype=container"
    fsspec_store.put("log/1", DATA)
    assert fsspec_store.get("log/1").data == DATA
    assert container not in faulty.requests
    for _ in range(2):
        assert list(fsspec_store.list("none/")) == []
        with pytest.raises(ObjectNotFound):
            fsspec_store.head("none")
    assert faulty.requests.count(container) == 1


@pytest.mark.parametrize("protocol", ["s3"])
@pytest.mark.parametrize(
    ("status", "message"),
    [(400, b"the region 'us-east-1' is wrong; expecting 'eu-west-1'"), (301, b"use the specified endpoint")],
)
def test_another_region_is_named(faulty, fsspec_store, status: int, message: bytes):
    code = {400: b"AuthorizationHeaderMalformed", 301: b"PermanentRedirect"}[status]
    body = b"<Error><Code>%s</Code><Message>%s</Message></Error>" % (code, message)
    faulty.origin = lambda _: (
        status,
        body,
        {"content-type": "application/xml", "x-amz-bucket-region": "eu-west-1"},
    )
    with pytest.raises(InvalidStore, match=r"region: give|lies in eu-west-1: give") as caught:
        fsspec_store.put("k", b"")
    assert "client_kwargs.region_name" in str(caught.value)


@pytest.mark.parametrize("protocol", ["s3"])
def test_only_a_store_without_its_secrets_is_told_of_workers(faulty, fsspec_store, monkeypatch):
    body = b"<Error><Code>InvalidAccessKeyId</Code></Error>"
    faulty.origin = lambda _: (403, body, {"content-type": "application/xml"})
    with pytest.raises(Forbidden, match="check the credentials"):
        fsspec_store.put("k", b"")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the worker")
    again = pickle.loads(pickle.dumps(fsspec_store))  # noqa: S301 - our own bytes
    with pytest.raises(
        Forbidden, match=r"fsspec\.key, fsspec\.secret were given where the store was first opened"
    ):
        again.put("k", b"")


@pytest.mark.parametrize("protocol", ["gs"])
def test_project_to_bill_is_named(faulty, fsspec_options):
    """What the doctor advises for a bucket whose requesters pay."""
    own = {**fsspec_options["fsspec"], "requester_pays": "lab-project"}
    store = open_store("gs://bucket", {**fsspec_options, "fsspec": own})
    store.put_if_absent("k", b"x")
    assert store.get("k").data == b"x"
    assert [info.key for info in store.list()] == ["k"]
    assert all("userProject=lab-project" in asked for asked in faulty.requests)


REGISTRY = """
import sys
import fsspec
from loader.storage import open_store
before = dict(fsspec.registry)
for url in ("s3://bucket", "gs://bucket", "az://bucket"):
    options = {"s3": {"key": "k", "secret": "s"}, "gs": {"anon": True}, "az": {"account_name": "lab", "anon": True}}
    open_store(url, options[url[:2]])
open_store("memory://bucket", {"fsspec": {}}).put("k", b"x")
found = {name: str(fsspec.get_filesystem_class(name).__module__) for name in ("s3", "s3a", "gs", "gcs", "az", "abfs")}
assert not any("obstore" in where for where in found.values()), found
assert not any("obstore" in str(one) for one in fsspec.registry.values()), dict(fsspec.registry)
assert set(fsspec.registry) - set(before) <= {"memory", *found}, dict(fsspec.registry)
assert "obstore.fsspec" not in sys.modules
"""


def test_obstore_is_not_what_fsspec_opens():
    """Other libraries of the process open s3:// with what they were written for."""
    done = python("-c", REGISTRY)
    assert done.returncode == 0, done.stderr
