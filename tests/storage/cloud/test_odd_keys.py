"""Keys that no store of ours takes, in buckets of other people: a listing names them, and hands out the rest."""

import hashlib
import hmac
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from loader.storage import open_store
from loader.storage.cloud.listing import azure_signature
from loader.storage.store import Refusals, list_place
from tests.servers.s3 import boto3_client

GOOD = ["raw/a.jpg", "raw/b%41 +&.jpg", "raw/c.jpg", "raw/ü.jpg"]
ODD = ["raw//x.jpg", "raw/../x", "raw/./y", "raw/\x07bell.jpg", "raw/t\tab.jpg", "raw/.tmp-abc"]


def _list_keys(store, prefix="", start_after="", *, seek=False):
    refusals = Refusals()
    infos = list(list_place(store, prefix, start_after, refuse=refusals, seek=seek))
    return [info.key for info in infos], [name for name, _ in refusals.first], infos


@pytest.fixture(scope="module")
def odd_bucket(s3):
    """A bucket of a real S3 server with good keys and odd ones."""
    client = boto3_client(s3)
    client.create_bucket(Bucket="odd")
    for key in [*GOOD, *ODD, "raw/folder/"]:
        data = b"" if key.endswith("/") else key.encode()
        client.put_object(Bucket="odd", Key=key, Body=data, ACL="public-read")
    yield "s3://odd"
    client.close()


@pytest.mark.parametrize("kind", ["obstore", "anonymous", "fsspec"])
@pytest.mark.parametrize("prefix", ["", "raw/", "raw/b"])
def test_odd_keys_of_a_bucket_of_s3_are_named_and_the_others_listed(s3_options, odd_bucket, kind, prefix):
    options = dict(s3_options)
    if kind == "anonymous":
        options = {"anon": True, "endpoint_url": options["endpoint_url"]}
    if kind == "fsspec":
        client = {"endpoint_url": options["endpoint_url"]}
        options = {"fsspec": {"key": options["key"], "secret": options["secret"], "client_kwargs": client}}
    store = open_store(odd_bucket, options)
    keys, refused, infos = _list_keys(store, prefix)
    assert [key for key in keys if key != "raw/folder"] == [key for key in GOOD if key.startswith(prefix)]
    assert sorted(refused) == sorted(key for key in ODD if key.startswith(prefix))
    assert [key for key in [info.key for info in store.list(prefix)] if key != "raw/folder"] == [
        key for key in GOOD if key.startswith(prefix)
    ]
    for info in infos:
        if info.nbytes:
            blob = store.get_range(info.key, 0, info.nbytes, info.etag)  # the etag is that of other answers
            assert blob.data == info.key.encode()
            assert store.head(info.key) == info


def test_listing_of_odd_keys_goes_on_behind_a_key(s3_options, odd_bucket):
    store = open_store(f"{odd_bucket}/raw", s3_options)
    for seek in (False, True):
        keys, refused, _ = _list_keys(store, "", "b%41 +&.jpg", seek=seek)
        assert [key for key in keys if key != "folder"] == ["c.jpg", "ü.jpg"]
        assert refused == ["t\tab.jpg"]


@pytest.mark.parametrize("seek", [False, True])
def test_pages_of_odd_keys_are_listed_to_their_end_over_faults(faulty, faulty_options, protocol, seek):
    """Three keys a page: every page of the listing has an odd one, and the second of them fails at first."""
    if protocol == "gs":
        faulty.origin.page_keys = 3
    wanted = sorted(f"raw/{number:02}.jpg" for number in range(12))
    odd = sorted(f"raw/{number:02}//x\x01.jpg" for number in range(12))
    for key in wanted + odd:
        faulty.origin.hold(key, b"data")
    asked = iter(range(1000))
    faulty.fault_of = lambda request: 503 if next(asked) in (2, 5) else None
    store = open_store(f"{protocol}://bucket", faulty_options)
    keys, refused, infos = _list_keys(store, "raw/", seek=seek)
    assert keys == wanted
    assert sorted(refused) == odd
    assert store.head(wanted[3]) == infos[3]
    assert all(key.startswith("raw/0") for key in _list_keys(store, "raw/0", seek=seek)[0])
    assert _list_keys(store, "raw/", wanted[4], seek=seek)[0] == wanted[5:]


@pytest.mark.parametrize("status", [200, 503])
def test_direct_page_whose_answer_is_cut_is_requested_again(faulty, faulty_options, protocol, status):
    """Both an answer that tells its length and one in chunks, whose reader gets another error."""
    origin = faulty.origin
    if protocol == "gs":
        origin.page_keys = 3
    for key in ("raw/a.jpg", "raw//x\x01.jpg"):
        origin.hold(key, b"data")
    n_direct = 0

    def fault_of(request):
        nonlocal n_direct
        is_direct = request.headers.get("user-agent") == "penstock"
        n_direct += is_direct
        return "cut" if is_direct and n_direct == 1 else None

    def respond(request):
        if status == 503 and request.headers.get("user-agent") == "penstock" and n_direct == 1:
            return 503, b"400\r\n<Error><Code>SlowDown</Code></Error>", {"transfer-encoding": "chunked"}
        return origin(request)

    faulty.fault_of = fault_of
    faulty.origin = respond
    store = open_store(f"{protocol}://bucket", faulty_options)
    assert _list_keys(store, "raw/")[:2] == (["raw/a.jpg"], ["raw//x\x01.jpg"])
    assert n_direct == 2


@pytest.mark.parametrize("protocol", ["s3"])
def test_listing_of_odd_keys_is_signed_as_s3_asks(faulty, faulty_options, protocol):
    """The signature by Amazon's own description of it, of the request that arrived."""
    faulty.origin.hold("raw//x ü.jpg", b"data")
    targets = []
    faulty.fault_of = lambda request: targets.append(request.target)
    assert _list_keys(open_store("s3://bucket", faulty_options), "raw/")[1] == ["raw//x ü.jpg"]
    parts = urlsplit(targets[-1])
    told = dict(parse_qsl(parts.query, keep_blank_values=True))
    signature, when = told.pop("X-Amz-Signature"), told["X-Amz-Date"]
    scope = told["X-Amz-Credential"].partition("/")[2]
    query = "&".join(f"{quote(name, safe='')}={quote(told[name], safe='')}" for name in sorted(told))
    host = urlsplit(faulty.endpoint).netloc
    request = "\n".join(["GET", parts.path, query, f"host:{host}\n", "host", "UNSIGNED-PAYLOAD"])
    text = f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{faulty_options['secret']}".encode()
    for word in [*scope.split("/"), text]:
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    assert signature == key.hex()


@pytest.mark.parametrize("protocol", ["gs"])
def test_odd_keys_of_google_are_listed_by_fsspec(faulty, faulty_options):
    for key in [*GOOD, *ODD]:
        faulty.origin.hold(key, b"data")
    own = {"token": "anon", "endpoint_url": faulty.endpoint}
    keys, refused, _ = _list_keys(open_store("gs://bucket", {"fsspec": own}), "raw/")
    assert keys == GOOD
    assert sorted(refused) == sorted(ODD)


def test_request_to_azure_is_signed_as_its_own_library_signs_it():
    from azure.core.pipeline import PipelineContext, PipelineRequest
    from azure.core.pipeline.transport import HttpRequest
    from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

    key = "UExBTlRFRHNlY3JldFBMQU5URUQ="
    query = {"comp": "list", "restype": "container", "prefix": "raw/ü +&", "marker": "a/b=="}
    headers = {"x-ms-date": "Thu, 26 Nov 2026 16:00:00 GMT", "x-ms-version": "2021-12-02"}
    address = "https://lab.blob.core.windows.net/bucket"
    request = HttpRequest("GET", address, headers=dict(headers))
    request.format_parameters(
        {name: value.replace("+", "%2B").replace("&", "%26") for name, value in query.items()}
    )
    SharedKeyCredentialPolicy("lab", key).on_request(PipelineRequest(request, PipelineContext(None)))
    assert azure_signature("lab", key, address, query, headers) == request.headers["Authorization"]
