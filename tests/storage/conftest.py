"""Stores to test: each backend over each server that speaks its protocol, and one that misbehaves as it is told."""

import base64
import itertools
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest

from loader.storage import Store, open_store
from loader.storage.mirror import MirroredStore
from loader.testing.stores import Backend

KEY, SECRET = "AKIAPLANTEDKEY", "PLANTEDsecretPLANTED"
ACCOUNT_KEY = base64.b64encode(SECRET.encode()).decode()
BUCKET = "bucket"
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def no_credentials_from_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No test sees the credentials, profiles or endpoints of whoever runs it."""
    for name in (
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "PROFILE",
        "REGION",
        "DEFAULT_REGION",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    nowhere = str(tmp_path_factory.getbasetemp() / "no-such-file")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)


@pytest.fixture
def s3_options(s3: dict[str, str]) -> dict[str, object]:
    return {**s3, "retry_base_s": 0.001}


def _has_s3fs() -> bool:
    """Whether the s3fs that is installed can create atomically; beside a new boto3 pip takes one of 2020."""
    return [int(part) for part in version("s3fs").split(".")[:2]] >= [2024, 10]


SERVERS = {"s3": "s3", "ceph": "s3", "gcs": "gs", "azure": "az"}
"""Fixture with a server's options -> scheme of its URLs."""

FSSPEC = {  # scheme -> (options of ours -> those of the fsspec file system for the same server)
    "s3": lambda o: {
        "key": o["key"],
        "secret": o["secret"],
        "client_kwargs": {"endpoint_url": o["endpoint_url"]},
    },
    "gs": lambda o: {"token": _google_token(o["bearer_token"]), "endpoint_url": o["endpoint_url"]},
    "az": lambda o: {
        "account_name": o["account_name"],
        "connection_string": f"DefaultEndpointsProtocol=http;AccountName={o['account_name']};"
        f"AccountKey={o['account_key']};BlobEndpoint={o['endpoint']};",
    },
}


def _google_token(text: str) -> object:
    from google.oauth2.credentials import Credentials

    return Credentials(text)


@pytest.fixture(scope="session")
def google_file(gcs, tmp_path_factory) -> str:
    """A service account's key, whose tokens the fake gives out."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    told = {
        "type": "service_account",
        "client_email": "lab@lab.example",
        "private_key_id": "1",
        "project_id": "lab",
    }
    path = tmp_path_factory.mktemp("google") / "key.json"
    path.write_text(
        json.dumps({**told, "private_key": private.decode(), "token_uri": gcs["endpoint_url"] + "/token"})
    )
    return str(path)


@pytest.fixture
def credentials_outside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the backend's server, where a worker finds them that has none in its options."""
    server = request.node.callspec.params["backend"][0]
    found: dict[str, str] = {}
    if server in ("s3", "ceph"):
        found = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    if server == "gcs":
        found = {"GOOGLE_APPLICATION_CREDENTIALS": request.getfixturevalue("google_file")}
    if server == "azure":
        options = request.getfixturevalue("azure")
        found = {
            "AZURE_STORAGE_ACCOUNT_KEY": options["account_key"],
            "AZURE_STORAGE_CONNECTION_STRING": FSSPEC["az"](options)["connection_string"],
        }
    for name, value in found.items():
        monkeypatch.setenv(name, value)


def one_root(store: Store) -> str:
    """The identity of every store."""
    return "one"


def _server_backends(server: str, *marks: pytest.MarkDecorator) -> list[Any]:
    """A server's two backends: obstore, and fsspec."""
    return [
        pytest.param((server, kind), id=f"{server}-{kind}", marks=marks) for kind in ("obstore", "fsspec")
    ]


BACKENDS = [
    *("local", "file-url", "memory", "fsspec-memory", "mirrored"),
    *_server_backends("s3")[: 2 if _has_s3fs() else 1],
    pytest.param(("s3", "headers"), id="s3-headers"),
    *_server_backends("gcs"),
    *_server_backends("azure", pytest.mark.server),
    *_server_backends("ceph", pytest.mark.ceph)[: 2 if _has_s3fs() else 1],
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path) -> Backend:
    number = next(_numbers)
    root = tmp_path / "ein Ordner ü"
    if request.param == "local":
        return Backend(open=lambda: open_store(str(root)))
    if request.param == "file-url":
        return Backend(open=lambda: open_store(root.as_uri()))
    if request.param == "memory":
        return Backend(open=lambda: open_store(f"memory://test-{number}/some/prefix"), tells_time=False)
    if request.param == "fsspec-memory":
        url = f"memory://test-{number}/some/prefix"
        return Backend(open=lambda: open_store(url, {"fsspec": {}}), creates=False, tells_time=False)
    if request.param == "mirrored":  # written in memory, looked for on a disk first, which holds nothing
        stores = f"memory://test-{number}/some/prefix", str(root)
        return Backend(open=lambda: MirroredStore([*map(open_store, stores)], one_root), tells_time=False)
    server, kind = request.param
    options: dict[str, object] = request.getfixturevalue(server)
    ways = {"obstore": options, "headers": {**options, "direct_reads": False}}
    own = ways.get(kind) or {"fsspec": FSSPEC[SERVERS[server]](options)}
    url = f"{SERVERS[server]}://{BUCKET}/test-{number}/prefix"
    return Backend(
        open=lambda: open_store(url, {**own, "retry_base_s": 0.001}),
        refused=frozenset("?")
        if (server, kind) == ("azure", "fsspec")
        else frozenset(),  # adlfs ends a key there
        secrets=("PLANTED", "UExBTlRFRH"),  # the second in base64
    )


@pytest.fixture
def store(backend: Backend) -> Iterator[Store]:
    opened = backend.open()
    yield opened
    opened.close()


@pytest.fixture(
    params=[
        *_server_backends("s3")[: 2 if _has_s3fs() else 1],
        *_server_backends("gcs"),
        *_server_backends("azure", pytest.mark.server),
    ]
)
def nowhere(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store in a bucket that is not there, on a server that answers."""
    server, kind = request.param
    options: dict[str, object] = request.getfixturevalue(server)
    own = options if kind == "obstore" else {"fsspec": FSSPEC[SERVERS[server]](options)}
    opened = open_store(f"{SERVERS[server]}://no-such-bucket/prefix", {**own, "retry_base_s": 0.001})
    yield opened
    opened.close()


PROTOCOLS = {  # scheme -> module of tests/servers, class, options of a store there
    "s3": ("s3", "SmallS3", lambda at: {"key": KEY, "secret": SECRET, "endpoint": at}),
    "gs": ("gcs", "Gcs", lambda at: {"bearer_token": SECRET, "endpoint_url": at}),
    "az": (
        *("azure", "SmallAzure"),
        lambda at: {"account_name": "lab", "account_key": ACCOUNT_KEY, "endpoint": f"{at}/lab"},
    ),
}


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """What the client speaks to the faulty server; a test of one of them alone parametrizes it anew."""
    found: str = request.param
    return found


@pytest.fixture
def faulty(shared, protocol: str) -> Iterator[Any]:
    """A small store that misbehaves as it is told: `faulty.faults`. `faulty.origin` has `hold` and `held`."""
    module, name, _ = PROTOCOLS[protocol]
    server = shared("servers/http").HttpServer(getattr(shared(f"servers/{module}"), name)(BUCKET))
    yield server
    server.close()


@pytest.fixture
def faulty_options(faulty, protocol: str) -> dict[str, object]:
    """Its pauses are short and its deadline is long: only the number of faults decides."""
    budget = {"retry_base_s": 0.001, "retry_cap_s": 0.002, "retry_deadline_s": 20}
    return {**PROTOCOLS[protocol][2](faulty.endpoint), "timeout_s": 20, **budget}


@pytest.fixture
def faulty_store(protocol: str, faulty_options: dict[str, object]) -> Iterator[Store]:
    opened = open_store(f"{protocol}://{BUCKET}", faulty_options)
    yield opened
    opened.close()
