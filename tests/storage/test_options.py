"""URLs and options: everybody's spelling, one meaning, and nothing ignored."""

import logging

import pytest

from loader.errors import InvalidStore
from loader.storage import open_store
from loader.storage.cloud.azure import azure_config
from loader.storage.cloud.gcs import gcs_config
from loader.storage.cloud.s3 import s3_config
from loader.storage.spec import store_runtime
from tests.refusals import refusal
from tests.servers.processes import python


@pytest.mark.parametrize(
    ("options", "environ", "config"),
    [
        ({}, {}, {"region": "us-east-1"}),
        ({"anon": True}, {}, {"skip_signature": True, "region": "us-east-1"}),
        ({"anon": False, "region": "eu-west-1"}, {}, {"region": "eu-west-1"}),
        ({}, {"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "no"}, {"region": "eu-west-2"}),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-3"}, {"region": "eu-west-3"}),
        (
            {"key": "K", "secret": "S", "token": "T", "endpoint_url": "http://h:1"},
            {"AWS_ENDPOINT_URL": "http://other"},
            {"endpoint": "http://h:1", "region": "us-east-1"},
        ),
        (
            {"client_kwargs": {"endpoint_url": "https://h", "region_name": "r"}},
            {},
            {"endpoint": "https://h", "region": "r"},
        ),
        (
            {"region_name": "r", "region": "r", "endpoint": None, "requester_pays": True, "timeout_s": 3},
            {},
            {"request_payer": True, "region": "r"},
        ),
        ({}, {"AWS_ENDPOINT_URL": "http://a"}, {"endpoint": "http://a", "region": "us-east-1"}),
        (
            {},
            {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"},
            {"endpoint": "http://b", "region": "us-east-1"},
        ),
    ],
)
def test_s3_options(options, environ, config):
    config_made, provider = s3_config("s3://b", options, {**NO_FILE, **environ})
    assert config_made == config
    assert (provider is None) == ("key" not in options)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "K", "secret": "S", "token": "T"},
        {"access_key_id": "K", "secret_access_key": "S", "session_token": "T"},
        {"aws_access_key_id": "K", "aws_secret_access_key": "S", "aws_session_token": "T"},
        {"client_kwargs": {"aws_access_key_id": "K", "aws_secret_access_key": "S", "aws_session_token": "T"}},
    ],
)
def test_explicit_keys(options):
    config, provider = s3_config("s3://b", options, {**NO_FILE, "AWS_PROFILE": "not asked"})
    assert config == {"region": "us-east-1"}
    assert provider() == {"access_key_id": "K", "secret_access_key": "S", "token": "T", "expires_at": None}


@pytest.mark.parametrize("protocol", ["s3"])
def test_explicit_keys_are_not_mixed_with_the_environments_token(s3_options, faulty, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    faulty.origin.hold("k", b"x")
    open_store("s3://bucket", {**s3_options, "endpoint_url": faulty.endpoint}).get("k")
    assert "x-amz-security-token" not in faulty.headers[-1]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"endpont_url": "x"}, {"what": "option", "where": "s3://bucket/prefix", "given": "endpont_url"}),
        (
            {"client_kwargs": {"verify": False}},
            {"what": "option", "where": "s3://bucket/prefix", "given": "verify"},
        ),
        (
            {"client_kwargs": {"profile": "lab"}},
            {"what": "client_kwargs", "where": "s3://bucket/prefix", "given": "profile"},
        ),
        (
            {"client_kwargs": {"timeout_s": 1}},
            {"what": "client_kwargs", "where": "s3://bucket/prefix", "given": "timeout_s"},
        ),
        (
            {"client_kwargs": {"direct_reads": False}},
            {"what": "client_kwargs", "where": "s3://bucket/prefix", "given": "direct_reads"},
        ),
        (
            {"client_kwargs": "x"},
            {"what": "client_kwargs", "where": "s3://bucket/prefix", "given": "str", "accepted": "a dict"},
        ),
        (
            {"key": "A", "access_key_id": "B"},
            {
                "what": "access_key_id",
                "where": "s3://bucket/prefix",
                "given": "key",
                "accepted": "one of them",
            },
        ),
        (
            {"endpoint_url": "A", "client_kwargs": {"endpoint_url": "B"}},
            {"what": "endpoint_url", "where": "s3://bucket/prefix", "given": "twice", "accepted": "once"},
        ),
        ({"profile": "p", "anon": True}, {"what": "credentials", "where": "s3://bucket/prefix"}),
        (
            {"profile": "no-such-profile"},
            {"what": "profile", "where": "s3://bucket/prefix", "given": "no-such-profile"},
        ),
        (
            {"credential_provider": 5},
            {
                "what": "credential_provider",
                "where": "s3://bucket/prefix",
                "given": "int",
                "accepted": "a function",
            },
        ),
        (
            {"key": "A"},
            {
                "what": "key and secret",
                "where": "s3://bucket/prefix",
                "given": "one",
                "accepted": "both or neither",
            },
        ),
        (
            {"token": "A"},
            {
                "what": "key and secret",
                "where": "s3://bucket/prefix",
                "given": "one",
                "accepted": "both or neither",
            },
        ),
        ({"key": "A", "secret": "B", "profile": "p"}, {"what": "credentials", "where": "s3://bucket/prefix"}),
        ({"checksum_algorithm": "no-such"}, {"what": "options", "where": "bucket"}),
        (
            {"direct_reads": "perhaps"},
            {
                "what": "direct_reads",
                "where": "s3://bucket/prefix",
                "given": "perhaps",
                "accepted": [True, False],
            },
        ),
        (
            {"timeout_s": "soon"},
            {
                "what": "timeout_s",
                "where": "s3://bucket/prefix",
                "given": "soon",
                "accepted": [0, 1000000000.0],
            },
        ),
        (
            {"timeout_s": 1e300},
            {
                "what": "timeout_s",
                "where": "s3://bucket/prefix",
                "given": 1e300,
                "accepted": [0, 1000000000.0],
            },
        ),
        (
            {"retry_deadline_s": -1},
            {
                "what": "retry_deadline_s",
                "where": "s3://bucket/prefix",
                "given": -1,
                "accepted": [0, 1000000000.0],
            },
        ),
        ({"max_concurrency": 0}, {"what": "max_concurrency", "given": 0, "accepted": "1 or more"}),
        (
            {"retry_cap_s": 0.0},
            {"what": "retry budget", "given": "RetryBudget(deadline_s=60.0, base_s=0.05, cap_s=0.0)"},
        ),
    ],
)
def test_s3_options_that_are_refused(options, fault):
    with refusal(InvalidStore, **fault):
        open_store("s3://bucket/prefix", options)


NO_FILE = {"AWS_SHARED_CREDENTIALS_FILE": "/no/such/file", "AWS_CONFIG_FILE": "/no/such/file"}


def profiles(tmp_path, monkeypatch) -> dict[str, str]:
    """Files of AWS's tools, for boto3 in the environment; returns what names them."""
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = AKLAB\naws_secret_access_key = sss\n")
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-north-1\n")
    found = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize(("options", "environ"), [({"profile": "lab"}, {}), ({}, {"AWS_PROFILE": "lab"})])
def test_profile_gives_credentials_and_region(tmp_path, monkeypatch, options, environ):
    environ = {**environ, **profiles(tmp_path, monkeypatch)}
    config, provider = s3_config("s3://b", options, environ)
    assert provider()["access_key_id"] == "AKLAB"
    assert config == {"region": "eu-north-1"}
    assert s3_config("s3://b", {**options, "region": "r"}, environ)[0] == {"region": "r"}
    open_store("s3://b", options)


def test_explicit_credentials_come_before_the_environments_profile(tmp_path, monkeypatch):
    profiles(tmp_path, monkeypatch)
    environ = {**NO_FILE, "AWS_PROFILE": "lab"}
    assert s3_config("s3://b", {"key": "K", "secret": "S"}, environ)[1]()["access_key_id"] == "K"
    assert s3_config("s3://b", {"anon": True}, environ)[1] is None
    assert s3_config("s3://b", {}, {**environ, "AWS_ACCESS_KEY_ID": "K"})[1] is None


def test_region_and_endpoint_of_a_profile_serve_keys_of_the_environment(tmp_path):
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-south-1\nendpoint_url = http://h:9\ns3 =\n  x = 1\n"
    )
    environ = {**NO_FILE, "AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_ACCESS_KEY_ID": "K"}
    found, provider = s3_config("s3://b", {}, environ)
    assert (found, provider) == ({"region": "eu-south-1", "endpoint": "http://h:9"}, None)
    found, _ = s3_config("s3://b", {"region": "r"}, {**environ, "AWS_ENDPOINT_URL": "http://other"})
    assert found == {"region": "r", "endpoint": "http://other"}


def test_default_profile_is_found(tmp_path, monkeypatch):
    here = profiles(tmp_path, monkeypatch)
    assert s3_config("s3://b", {}, here)[1] is None, "no [default] in it"
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKDEF\naws_secret_access_key = sss\n"
    )
    assert s3_config("s3://b", {}, here)[1]()["access_key_id"] == "AKDEF"


def test_empty_variables_name_no_credentials_of_aws(tmp_path, monkeypatch):
    """As for boto3: `docker compose` sets each variable of a list, some of them empty."""
    empty = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_WEB_IDENTITY_TOKEN_FILE": ""}
    environ = {**empty, **profiles(tmp_path, monkeypatch)}
    lab = s3_config("s3://b", {}, {**environ, "AWS_PROFILE": "lab"})
    assert lab[1]()["access_key_id"] == "AKLAB"
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKDEF\naws_secret_access_key = sss\n"
    )
    assert s3_config("s3://b", {}, environ)[1]()["access_key_id"] == "AKDEF"


def test_default_profile_that_fails_is_named(tmp_path, monkeypatch, caplog):
    here = profiles(tmp_path, monkeypatch)
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = AKDEF\n")
    assert s3_config("s3://b", {}, here)[1] is None
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "not using the default AWS profile" in record.getMessage()


NOWHERE = {"CLOUDSDK_CONFIG": "/no/such/folder"}


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, {}),
        ({"token": "anon"}, {"skip_signature": True}),
        ({"anon": True}, {"skip_signature": True}),
        ({"token": "google_default", "project": "p"}, {}),
        ({"token": {"private_key": "x"}}, {"service_account_key": '{"private_key": "x"}'}),
        (
            {"endpoint_url": "http://h", "google_bearer_token": "t"},
            {"base_url": "http://h", "bearer_token": "t"},
        ),
    ],
)
def test_gcs_options(options, config):
    assert gcs_config("gs://b", options, NOWHERE) == (config, None)


def test_empty_variable_names_no_credentials_of_google():
    assert gcs_config("gs://b", {}, {**NOWHERE, "GOOGLE_APPLICATION_CREDENTIALS": ""}) == ({}, None)


@pytest.mark.parametrize(
    ("options", "host", "config"),
    [
        ({}, "", {}),
        (
            {"account_name": "a", "sas_token": "s", "anon": False},
            "",
            {"account_name": "a", "sas_key": "s"},
        ),
        ({}, "lab.dfs.core.windows.net", {"account_name": "lab"}),
        (
            {"account_host": "lab.blob.core.example"},
            "",
            {"account_name": "lab", "endpoint": "https://lab.blob.core.example"},
        ),
        (
            {
                "connection_string": "DefaultEndpointsProtocol=https;AccountName=lab;AccountKey=a+b/c==;"
                "EndpointSuffix=core.windows.net"
            },
            "",
            {
                "account_name": "lab",
                "account_key": "a+b/c==",
                "endpoint": "https://lab.blob.core.windows.net",
            },
        ),
        (
            {"account_key": "k"},
            "lab.dfs.core.chinacloudapi.cn",
            {"account_name": "lab", "account_key": "k", "endpoint": "https://lab.blob.core.chinacloudapi.cn"},
        ),
        (
            {"account_key": "k", "endpoint": "http://127.0.0.1:1/lab"},
            "lab.dfs.core.chinacloudapi.cn",
            {"account_name": "lab", "account_key": "k", "endpoint": "http://127.0.0.1:1/lab"},
        ),
        (
            {"connection_string": "AccountName=lab;AccountKey=k;BlobEndpoint=http://127.0.0.1:1/lab;"},
            "",
            {"account_name": "lab", "account_key": "k", "endpoint": "http://127.0.0.1:1/lab"},
        ),
    ],
)
def test_azure_options(options, host, config):
    kinds = {"account_key": "access_key", "sas_key": "sas_token"}
    kind = next(({"credential_type": kinds[name]} for name in kinds if name in config), {})
    assert azure_config("az://c", options, host, {}) == ({**config, **kind}, None)


@pytest.mark.parametrize(
    ("url", "options", "fault"),
    [
        ("gs://b", {"token": "ya29.raw"}, {"what": "token", "where": "gs://b"}),
        ("gs://b", {"consistency": "none"}, {"what": "option", "where": "gs://b", "given": "consistency"}),
        ("az://c", {"connection_string": "AccountName"}, {"what": "connection_string", "where": "az://c"}),
        (
            "abfs://c@lab.dfs.core.windows.net/p",
            {"account_name": "other"},
            {
                "what": "account_name",
                "where": "az://c@lab.dfs.core.windows.net/p",
                "given": "other",
                "accepted": "lab.dfs.core.windows.net",
            },
        ),
        ("az://c", {"account": "x"}, {"what": "option", "where": "az://c", "given": "account"}),
        (
            "az://c",
            {"account_name": "a", "connection_string": "AccountName=b;AccountKey=eA=="},
            {"what": "account_name", "where": "az://c", "accepted": "connection_string"},
        ),
        (
            "az://c",
            {"account_key": "a2V5", "connection_string": "AccountName=b;AccountKey=eA=="},
            {"what": "account_key", "where": "az://c", "accepted": "connection_string"},
        ),
        (
            "az://c",
            {"account_host": "lab.blob.core.windows.net", "endpoint": "http://other:1"},
            {"what": "endpoint", "where": "az://c", "accepted": "lab.blob.core.windows.net"},
        ),
        (
            "memory://name",
            {"x": 1},
            {"what": "options", "where": "memory://name", "given": ["x"], "accepted": "none"},
        ),
        ("memory://", {}, {"what": "URL", "given": "memory://"}),
        # The parts around "::" are valid.
        ("memory://b::[x", {}, {"what": "store URL"}),
        ("file://b::[x", {}, {"what": "store URL"}),
        ("s3:///prefix", {}, {"what": "bucket", "where": "s3:///prefix", "given": "none"}),
        ("s3://b/../other", {}, {"what": "segment of a key", "where": "../other", "given": ".."}),
        ("s3://b/p?versionId=1", {}, {"what": "store URL", "given": "a query"}),
        ("nosuchscheme://x", {}, {"what": "URL", "where": "nosuchscheme://x"}),
        (
            "memory://x",
            {"fsspec": {}, "anon": True},
            {"what": "options", "where": "memory://x", "given": ["anon"]},
        ),
        ("memory://x", {"fsspec": 3}, {"what": "options", "where": "memory://x", "given": []}),
        (5, {}, {"what": "store URL", "given": 5}),
        (b"/data", {}, {"what": "store URL", "given": "b'/data'"}),
    ],
)
def test_other_urls_and_options_that_are_refused(url, options, fault):
    with refusal(InvalidStore, **fault):
        open_store(url, options)


@pytest.mark.parametrize(
    ("url", "option", "suggestion"),
    [
        (
            "s3://b",
            "endpont_url",
            r"'endpont_url', did you mean 'endpoint_url'\? accepted are .*skip_signature",
        ),
        ("az://c", "account", "did you mean 'account_"),
    ],
)
def test_close_name_of_an_option_is_suggested(url, option, suggestion: str):
    with pytest.raises(InvalidStore, match=suggestion):
        open_store(url, {option: "x"})


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1:9000",
            "http//x",
            "http://127.0.0.1:90x0",
            "http://127.0.0.1:90000",
            "http://a b",
            "http://",
        ),
        *("ftp://h", "http://user:PLANTED@h", "http://h?x=1", "http://[::1"),
        *(
            "http://[abc]:1",
            "http://999.1.1.1",
            "http://1.2.3.4.5:1",
            "http://a|b",
            "http://a%zz",
            "http://h/a<b",
        ),
    ],
)
@pytest.mark.parametrize(
    ("url", "option", "more"),
    [
        ("s3://bucket/p", "endpoint_url", {}),
        ("s3://bucket/p", "sts_endpoint", {}),
        ("gs://bucket/p", "endpoint_url", {"anon": True}),
        ("az://cont/p", "endpoint", {"account_name": "lab", "anon": True}),
    ],
)
def test_what_is_no_address_is_refused_by_its_option(url: str, option: str, more, address: str):
    with refusal(InvalidStore, what=f"option {option}", where=url, given=address) as caught:
        open_store(url, {option: address, **more})
    assert "PLANTED" not in str(caught.value) + str(caught.value.fields)


def test_address_of_the_environment_is_named_by_its_variable():
    with refusal(InvalidStore, what="AWS_ENDPOINT_URL", where="s3://b", given="127.0.0.1:9000"):
        s3_config("s3://b", {}, {**NO_FILE, "AWS_ENDPOINT_URL": "127.0.0.1:9000"})


def test_empty_address_is_none():
    assert s3_config("s3://b", {"endpoint_url": ""}, NO_FILE)[0] == {"region": "us-east-1"}


@pytest.mark.parametrize(
    "address",
    [
        *("http://127.0.0.1:9000/", "https://[::1]:9000", "https://host/path/below"),
        *("http://127.1:9000", "http://0x7f.1", "http://store_1.", "http://h/a|b"),
    ],
)
def test_addresses_are_taken_as_they_are(address: str):
    assert s3_config("s3://b", {"endpoint_url": address}, NO_FILE)[0]["endpoint"] == address


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("gs://bucket/a/b/", {"anon": True}, "gs://bucket/a/b"),
        ("gcs://bucket", {"token": "anon"}, "gs://bucket"),
        ("az://cont/a", {"account_name": "lab", "account_key": "a2V5"}, "az://cont/a"),
        ("abfs://cont@lab.dfs.core.windows.net/a", {"anon": True}, "az://cont@lab.dfs.core.windows.net/a"),
        ("s3a://bucket/a", {"anon": True}, "s3://bucket/a"),
        ("S3://bucket/a", {"anon": True}, "s3://bucket/a"),
        ("memory://name/a/", {}, "memory://name/a"),
    ],
)
def test_stores_open_without_contact_and_their_url_opens_them_again(url: str, options, shown: str):
    store = open_store(url, options)
    assert store.url == shown
    assert open_store(store.url, options).url == shown


def test_fsspec_local_is_our_local(tmp_path):
    store = open_store(f"file://{tmp_path}", {"fsspec": {"auto_mkdir": True}})
    store.put_if_absent("a/b", b"x")
    assert (tmp_path / "a" / "b").read_bytes() == b"x"


def test_runtime_options_reach_the_client():
    runtime = store_runtime(
        "s3://b", {"timeout_s": 2, "retry_deadline_s": 7, "max_concurrency": "9", "key": "secret!"}
    )
    assert (runtime.timeout_s, runtime.budget.deadline_s, runtime.limiter().limit) == (2.0, 7.0, 9)
    made = runtime.client_options("http://h")
    assert made["allow_http"] is True
    assert made["timeout"].total_seconds() == 2
    assert "allow_http" not in runtime.client_options("https://h")
    assert runtime.retry_config(0)["max_retries"] == 0
    assert "secret!" not in repr(runtime)


def test_importing_the_package_imports_no_client():
    script = (
        "import sys, loader.storage\n"
        "loader.storage.open_store('memory://x'); loader.storage.open_store('/tmp')\n"
        "print([name for name in ('obstore', 'fsspec', 'boto3', 's3fs', 'aiohttp') if name in sys.modules])"
    )
    done = python("-c", script, check=True)
    assert done.stdout.strip() == "[]"
