"""URLs and options: everybody's spelling, one meaning, and nothing ignored."""

import pytest

from loader.errors import InvalidStore
from loader.storage import open_store
from loader.storage.cloud.azure import azure_config
from loader.storage.cloud.gcs import gcs_config
from loader.storage.cloud.s3 import s3_config
from loader.storage.spec import store_runtime
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
    ("options", "message"),
    [
        ({"endpont_url": "x"}, r"'endpont_url', did you mean 'endpoint_url'\? accepted are .*skip_signature"),
        ({"client_kwargs": {"verify": False}}, "unknown option 'verify'"),
        ({"client_kwargs": {"profile": "lab"}}, "'profile' stands in client_kwargs"),
        ({"client_kwargs": {"timeout_s": 1}}, "'timeout_s' stands in client_kwargs"),
        ({"client_kwargs": {"direct_reads": False}}, "'direct_reads' stands in client_kwargs"),
        ({"client_kwargs": "x"}, "give a dict"),
        ({"key": "A", "access_key_id": "B"}, "mean the same and differ"),
        ({"endpoint_url": "A", "client_kwargs": {"endpoint_url": "B"}}, "given twice"),
        ({"profile": "p", "anon": True}, "contradict"),
        ({"profile": "no-such-profile"}, "gives no credentials"),
        ({"credential_provider": 5}, "give a function"),
        ({"key": "A"}, "both key and secret"),
        ({"token": "A"}, "both key and secret"),
        ({"key": "A", "secret": "B", "profile": "p"}, "contradict"),
        ({"checksum_algorithm": "no-such"}, "options are refused"),
        ({"direct_reads": "perhaps"}, "give true or false"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"timeout_s": 1e300}, "timeout_s=1e\\+300 is no number of 0 to 1,000,000,000"),
        ({"retry_deadline_s": -1}, "retry_deadline_s"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"retry_cap_s": 0.0}, "retry_cap_s"),
    ],
)
def test_s3_options_that_are_refused(options, message: str):
    with pytest.raises(InvalidStore, match=message):
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
    ("url", "options", "message"),
    [
        ("gs://b", {"token": "ya29.raw"}, "bearer_token"),
        ("gs://b", {"consistency": "none"}, "unknown option 'consistency'"),
        ("az://c", {"connection_string": "AccountName"}, "connection_string"),
        ("abfs://c@lab.dfs.core.windows.net/p", {"account_name": "other"}, "not the account"),
        ("az://c", {"account": "x"}, "did you mean 'account_"),
        (
            "az://c",
            {"account_name": "a", "connection_string": "AccountName=b;AccountKey=eA=="},
            "account_name differs",
        ),
        (
            "az://c",
            {"account_key": "a2V5", "connection_string": "AccountName=b;AccountKey=eA=="},
            "account_key differs",
        ),
        (
            "az://c",
            {"account_host": "lab.blob.core.windows.net", "endpoint": "http://other:1"},
            "give one of them",
        ),
        ("memory://name", {"x": 1}, "takes no options"),
        ("memory://", {}, "has no name"),
        ("s3:///prefix", {}, "names no bucket"),
        ("s3://b/../other", {}, "segment"),
        ("s3://b/p?versionId=1", {}, "has a query"),
        ("nosuchscheme://x", {}, "fsspec does not open it"),
        ("memory://x", {"fsspec": {}, "anon": True}, "anon"),
        ("memory://x", {"fsspec": 3}, "fsspec"),
        (5, {}, "store URL 5: give a path or a URL"),
        (b"/data", {}, "store URL b'/data'"),
    ],
)
def test_other_urls_and_options_that_are_refused(url, options, message: str):
    with pytest.raises(InvalidStore, match=message):
        open_store(url, options)


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
    with pytest.raises(InvalidStore, match=f"option {option}=.* is no address of a server") as caught:
        open_store(url, {option: address, **more})
    assert "PLANTED" not in str(caught.value)


def test_address_of_the_environment_is_named_by_its_variable():
    with pytest.raises(InvalidStore, match=r"AWS_ENDPOINT_URL='127\.0\.0\.1:9000' is no address"):
        s3_config("s3://b", {}, {**NO_FILE, "AWS_ENDPOINT_URL": "127.0.0.1:9000"})


def test_empty_address_is_none():
    assert s3_config("s3://b", {"endpoint_url": ""}, NO_FILE)[0] == {"region": "us-east-1"}


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:9000/", "https://[::1]:9000", "https://host/path/below"]
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
