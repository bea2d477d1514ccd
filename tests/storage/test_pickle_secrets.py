"""Credentials are in no pickle, no repr, no URL and no message."""

import os
import pickle
import subprocess
import sys
import traceback

import pytest

from loader.errors import Forbidden, InvalidStore, PenstockError
from loader.redaction import redact
from loader.storage import Store, StoreSpec, open_store
from loader.storage.cloud import azure, gcs, s3
from loader.storage.spec import is_secret, store_runtime, store_spec
from tests.servers.patience import PATIENCE_S

PLANTED = "PLANTEDsecretPLANTED"
NOWHERE = "http://127.0.0.1:1"


def provider() -> dict[str, object]:
    return {"access_key_id": PLANTED, "secret_access_key": PLANTED, "token": None, "expires_at": None}


STORES = [
    ("s3://bucket/p", {"key": PLANTED, "secret": PLANTED, "token": PLANTED, "endpoint_url": NOWHERE}),
    ("s3://bucket/p", {"client_kwargs": {"aws_access_key_id": PLANTED, "aws_secret_access_key": PLANTED}}),
    (
        "s3://bucket/p",
        {"access_key_id": PLANTED, "secret_access_key": PLANTED, "proxy_url": f"http://u:{PLANTED}@h"},
    ),
    ("s3://bucket/p", {"credential_provider": lambda: provider()}),
    ("gs://bucket/p", {"google_bearer_token": PLANTED}),
    ("az://cont/p", {"account_name": "lab", "sas_token": f"sv=1&sig={PLANTED}", "endpoint": NOWHERE}),
    ("az://cont/p", {"connection_string": "AccountName=lab;AccountKey=UExBTlRFRHNlY3JldFBMQU5URUQ="}),
    ("az://cont/p", {"azure_account_name": "lab", "azure_account_key": "UExBTlRFRHNlY3JldFBMQU5URUQ="}),
    ("s3://bucket/p", {"aws_sse_customer_key_base64": PLANTED, "server_side_encryption": "sse-c"}),
    (
        "memory://x/p",
        {"fsspec": {"password": PLANTED, "nested": {"api_token": PLANTED}, "custom": [PLANTED]}},
    ),
]
HIDDEN = (PLANTED, "UExBTlRFRHNlY3JldFBMQU5URUQ")


def has_secret(text: str) -> bool:
    return any(secret in text for secret in HIDDEN)


@pytest.mark.parametrize(("url", "options"), STORES[:-1])
def test_no_secret_is_shown_or_pickled(url: str, options):
    store = open_store(url, {**options, "retry_deadline_s": 0, "connect_timeout_s": 0.2, "timeout_s": 0.2})
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert not has_secret(pickle.dumps(store, protocol).decode("latin-1"))
    assert not has_secret(repr(store) + str(store) + store.url + repr(store.__reduce__()))
    spec = store.__reduce__()[1][0]
    assert isinstance(spec, StoreSpec)
    assert spec.dropped


def test_fsspec_store_drops_what_looks_like_a_secret():
    spec = store_spec(*STORES[-1])
    assert spec.dropped == ("fsspec.nested.api_token", "fsspec.password")
    assert spec.options == {"fsspec": {"nested": {}, "custom": [PLANTED]}}, (
        "a secret under an innocent name stays"
    )


@pytest.mark.parametrize(
    ("url", "options"),
    [
        STORES[0],
        STORES[5],
        ("s3://bucket", {"key": PLANTED, "secret": PLANTED, "no_such": 1}),
        ("s3://bucket", {"key": PLANTED, "access_key_id": PLANTED + "2"}),
        ("s3://bucket", {"key": PLANTED}),
        ("s3://bucket", {"profile": "p", "key": PLANTED}),
        (f"s3://user:{PLANTED}@bucket/p", {}),
        (f"https://user:{PLANTED}@host/p", {}),
        (f"https://host/p?X-Amz-Signature={PLANTED}", {}),
        (f"simplecache::http://user:{PLANTED}@host/p", {}),
        (f"simplecache::http://host/p?sig={PLANTED}", {}),
        ("s3://bucket/p", {"endpoint_url": f"https://user:{PLANTED}@host"}),
        (f"s3://bucket/p?sig={PLANTED}", {}),
        ("gs://b", {"token": PLANTED}),
        ("az://c", {"connection_string": f"{PLANTED};x"}),
        ("memory://x", {"password": PLANTED}),
        ("nosuchscheme://x", {"fsspec": {"password": PLANTED}}),
    ],
)
def test_no_message_or_traceback_shows_a_secret(url: str, options):
    runtime = (
        {"retry_deadline_s": 0, "timeout_s": 0.3}
        if "fsspec" not in options and "no_such" not in options
        else {}
    )
    with pytest.raises(PenstockError) as caught:
        open_store(url, {**options, **runtime}).get("k")
    shown = "".join(traceback.format_exception(caught.value, chain=True)[1:])
    source_lines = [line for line in shown.splitlines() if not line.startswith("    ")]
    assert not has_secret("\n".join(source_lines))
    assert not has_secret(str(caught.value) + repr(caught.value))


def test_what_is_secret():
    for name in ("key", "secret", "token", "Password", "aws_secret_access_key", "sas_token", "my_api_token"):
        assert is_secret(name)
    for name in (
        "endpoint_url",
        "region",
        "anon",
        "profile",
        "timeout_s",
        "web_identity_token_file",
        "account_name",
    ):
        assert not is_secret(name)


@pytest.mark.parametrize(("module", "prefix"), [(s3, "aws_"), (gcs, "google_"), (azure, "azure_")])
def test_name_and_its_prefixed_form_are_as_secret(module, prefix: str):
    for name in module.NAMES:
        bare = name.removeprefix(prefix)
        assert is_secret(prefix + bare) == is_secret(bare), name


def test_files_of_tokens_travel_under_every_name():
    options = {"aws_web_identity_token_file": "/token", "azure_federated_token_file": "/token"}
    files = {**options, "google_application_credentials": "/adc"}
    assert store_spec("s3://b/p", files) == StoreSpec(url="s3://b/p", options=files)


def test_password_in_the_url_of_an_option_is_dropped():
    options = {"endpoint_url": f"https://user:{PLANTED}@h", "fsspec": {"proxy": f"http://u:{PLANTED}@h"}}
    spec = store_spec("s3://b/p", options)
    assert spec.dropped == ("endpoint_url", "fsspec.proxy")
    assert spec.options == {"fsspec": {}}
    assert not has_secret(redact(f"at {options['endpoint_url']}", store_runtime("s3://b", options).secrets))


def test_private_key_of_sftp_is_dropped():
    spec = store_spec("sftp://h/p", {"fsspec": {"host": "h", "pkey": PLANTED}})
    assert spec == StoreSpec(url="sftp://h/p", options={"fsspec": {"host": "h"}}, dropped=("fsspec.pkey",))


def test_redact_ends_whatever_the_text():
    """In a process of its own, which can be ended."""
    script = "from loader.redaction import redact; print(len(redact('://' + ':' * 300_000)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == (b"300003\n", b"")


def test_redact():
    text = f"GET https://user:{PLANTED}@h/p?sv=2&sig=abc%2F&se=1 X-Amz-Signature=ff key {PLANTED} account=lab"
    shown = redact(text, (PLANTED,))
    assert shown == "GET https://***@h/p?sv=2&sig=***&se=1 X-Amz-Signature=*** key *** account=lab"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://ann:p@ss@h/db", "mysql://***@h/db"),
        ("(postgresql+psycopg2://ann:se/cr:et@db:5432/x)", "(postgresql+psycopg2://***@db:5432/x)"),
        ("url: /x?api_key=sec&slow_key=p1", "url: /x?api_key=***&slow_key=p1"),
        ("http://127.0.0.1:9000/lab/photos@1", "http://127.0.0.1:9000/lab/photos@1"),
        ("http://[::1]:9000/photos@1", "http://[::1]:9000/photos@1"),
    ],
)
def test_redact_hides_odd_passwords_and_no_version(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_provider_function_travels_by_name():
    store = open_store("s3://bucket", {"credential_provider": provider, "endpoint": NOWHERE})
    pickled = pickle.dumps(store)
    assert PLANTED.encode() not in pickled
    assert b"provider" in pickled
    assert store.__reduce__()[1][0].dropped == ()


def read_elsewhere(store: Store, environ: dict[str, str]) -> str:
    """What a fresh process gets that unpickles the store and reads 'k'."""
    script = (
        "import pickle, sys\n"
        "store = pickle.load(sys.stdin.buffer)\n"
        "try: print(store.get('k').data.decode())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(store),
        env={**clean, **environ},
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return done.stdout.decode().strip()


def test_worker_finds_its_own_credentials(s3_options):
    options = {**s3_options, "metadata_endpoint": NOWHERE, "retry_deadline_s": 0}
    store = open_store("s3://bucket/pickled", options)
    store.put("k", b"read by a worker")
    found = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "of the worker"}
    assert read_elsewhere(store, found) == "read by a worker"
    told = read_elsewhere(store, {})
    assert told.startswith(Forbidden.__name__)
    assert "key, secret were given where the store was first opened and are never pickled" in told


def test_memory_stays_in_its_process():
    store = open_store("memory://here")
    store.put("k", b"x")
    assert pickle.loads(pickle.dumps(store)).get("k").data == b"x"  # noqa: S301 - our own bytes
    script = "import pickle, sys\npickle.load(sys.stdin.buffer)"
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(store), capture_output=True, timeout=PATIENCE_S
    )
    assert b"InvalidStore" in done.stderr
    assert b"lives in the memory of process" in done.stderr
    assert issubclass(InvalidStore, ValueError)
