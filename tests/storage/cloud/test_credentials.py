"""Credentials as the providers' own tools find them, renewed before they expire, and in no message."""

import json
import pickle
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from loader.errors import Forbidden, InvalidStore, StoreError, Transient
from loader.storage import Store, open_store
from tests.refusals import refusal

ROLE = "arn:aws:iam::123456789012:role/trainer"
STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKWEB</AccessKeyId><SecretAccessKey>sss</SecretAccessKey>
<SessionToken>of-the-role</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


@pytest.fixture
def token_server(faulty, monkeypatch):
    """The faulty server gives out credentials too; what it was asked for them lies in the list."""
    asked = []
    store = faulty.origin

    def origin(request):
        if request.path == "/container":
            asked.append(request.headers["authorization"])
            told = {"AccessKeyId": "AKBOX", "SecretAccessKey": "sss", "Token": "of-the-container"}
            return 200, json.dumps({**told, "Expiration": "2099-01-01T00:00:00Z"}).encode(), {}
        if request.method == "POST" and request.path == "/":
            asked.append(request.body.decode())
            return 200, STS.encode(), {"content-type": "text/xml"}
        if request.path.endswith("/oauth2/v2.0/token") or request.path == "/msi":
            asked.append(request.body.decode())
            told = {"access_token": f"token-{len(asked)}", "expires_in": 3600, "expires_on": "4070908800"}
            return (
                200,
                json.dumps({**told, "token_type": "Bearer", "resource": "", "not_before": "0"}).encode(),
                {},
            )
        return store(request)

    store.hold("k", b"x")
    faulty.origin = origin
    return asked


def sent(faulty, name: str) -> list[str]:
    """That header of the requests for the object, or what stands for it in their addresses."""
    found = []
    for asked, headers in zip(faulty.requests, faulty.headers, strict=True):
        address = urlsplit(asked.partition(" ")[2])
        if address.path.endswith("bucket/k"):
            query = {key.lower(): value for key, value in parse_qsl(address.query)}
            found.append(headers.get(name, query.get(name, "")))
    return found


@pytest.mark.parametrize("protocol", ["s3"])
def test_containers_credentials(faulty, token_server, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("of-the-pod")
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.endpoint)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{faulty.endpoint}/container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    assert open_store("s3://bucket").get("k").data == b"x"
    assert token_server == ["of-the-pod"]
    assert sent(faulty, "x-amz-security-token") == ["of-the-container"]


@pytest.mark.parametrize("protocol", ["s3"])
def test_profile_with_a_web_identity(faulty, token_server, monkeypatch, tmp_path):
    (tmp_path / "token").write_text("of-the-pod")
    (tmp_path / "config").write_text(
        f"[profile pod]\nrole_arn = {ROLE}\nweb_identity_token_file = {tmp_path / 'token'}\nregion = eu-west-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", faulty.endpoint)
    monkeypatch.setenv("AWS_PROFILE", "pod")
    assert open_store("s3://bucket").get("k").data == b"x"
    assert sent(faulty, "x-amz-security-token") == ["of-the-role"]
    assert "WebIdentityToken=of-the-pod" in token_server[0]


@pytest.mark.parametrize("protocol", ["s3"])
@pytest.mark.parametrize("profile", ["lab", "default"])
def test_profile_with_a_process_is_asked_again_before_it_expires(
    faulty, token_server, monkeypatch, tmp_path, profile
):
    """Its credentials are used for ten minutes at most without asking boto3, which renews them in time."""
    program, soon = tmp_path / "give.py", (datetime.now(UTC) + timedelta(minutes=8)).isoformat()
    program.write_text(
        "import json, sys\n"
        "n = len(open(sys.argv[1], 'a').write('x') and open(sys.argv[1]).read())\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': 'AKPROC', 'SecretAccessKey': 'sss',"
        f" 'SessionToken': f'process-{{n}}', 'Expiration': '{soon}'}}))\n"
    )
    section = "default" if profile == "default" else f"profile {profile}"
    (tmp_path / "config").write_text(
        f"[{section}]\ncredential_process = {sys.executable} {program} {tmp_path / 'count'}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    options = {} if profile == "default" else {"profile": profile}
    store = open_store("s3://bucket", {**options, "endpoint_url": faulty.endpoint})
    assert store.get("k").data == b"x"
    from loader.storage.cloud.credentials import _boto_provider

    given = _boto_provider("s3://b", profile)()
    assert given["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)
    assert given["token"].startswith("process-")
    assert sent(faulty, "x-amz-security-token")[0].startswith("process-")


class Renewed:
    """Gives credentials that live so long, numbered; counts how often it was asked."""

    def __init__(self, seconds: float, make) -> None:
        self.seconds, self.make, self.asked = seconds, make, 0

    def __call__(self):
        self.asked += 1
        return {**self.make(self.asked), "expires_at": datetime.now(UTC) + timedelta(seconds=self.seconds)}


PROVIDERS = {
    "s3": lambda n: {"access_key_id": "AK", "secret_access_key": "sss", "token": f"token-{n}"},
    "gs": lambda n: {"token": f"token-{n}"},
    "az": lambda n: {"token": f"token-{n}"},
}


@pytest.mark.parametrize(("seconds", "tokens"), [(3600, [1, 1, 1]), (-1, [1, 2, 3])])
def test_expiring_credentials_are_asked_for_anew(
    faulty, protocol, faulty_options, seconds: float, tokens: list[int]
):
    faulty.origin.hold("k", b"x")
    provider = Renewed(seconds, PROVIDERS[protocol])
    secret = ("key", "secret", "bearer_token", "account_key")
    given = {name: value for name, value in faulty_options.items() if name not in secret}
    if protocol == "s3":
        given["direct_reads"] = False  # an address stays signed for longer: test_direct.py
    store = open_store(f"{protocol}://bucket", {**given, "credential_provider": provider})
    for _ in range(3):
        store.get("k")
    found = sent(faulty, "x-amz-security-token" if protocol == "s3" else "authorization")
    assert [token.removeprefix("Bearer ") for token in found] == [f"token-{number}" for number in tokens]
    assert provider.asked == tokens[-1]


@pytest.mark.parametrize("protocol", ["az"])
@pytest.mark.parametrize(
    ("environ", "body"),
    [
        ({"AZURE_FEDERATED_TOKEN_FILE": "FILE"}, "client_assertion=of-the-pod"),
        ({"AZURE_CLIENT_SECRET": "PLANTED-secret"}, "client_secret=PLANTED-secret"),
        ({"IDENTITY_ENDPOINT": "/msi", "IDENTITY_HEADER": "h"}, ""),
    ],
    ids=["workload identity", "service principal", "managed identity"],
)
def test_identities_of_azure(faulty, token_server, monkeypatch, tmp_path, environ: dict[str, str], body: str):
    (tmp_path / "token").write_text("of-the-pod")
    given = {
        "AZURE_AUTHORITY_HOST": faulty.endpoint,
        "AZURE_CLIENT_ID": "c",
        "AZURE_TENANT_ID": "t",
        **environ,
    }
    for name, value in given.items():
        value = {"FILE": str(tmp_path / "token"), "/msi": f"{faulty.endpoint}/msi"}.get(value, value)
        monkeypatch.setenv(name, value)
    store = open_store("az://bucket", {"account_name": "lab", "endpoint": f"{faulty.endpoint}/lab"})
    assert store.get("k").data == b"x"
    assert sent(faulty, "authorization") == ["Bearer token-1"]
    assert body in token_server[0]


@pytest.mark.parametrize("protocol", ["az"])
@pytest.mark.parametrize(
    ("options", "environ", "authorization", "query"),
    [
        ({"sas_token": "?sv=2&sig=a%2Fb"}, {}, "", "?sv=2&sig=a%2Fb"),
        ({"sas_token": "sv=2&sig=a"}, {"AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI="}, "", "?sv=2&sig=a"),
        ({}, {"AZURE_STORAGE_SAS_TOKEN": "sv=2&sig=c"}, "", "?sv=2&sig=c"),
        ({}, {"AZURE_STORAGE_KEY": "b3RoZXI="}, "SharedKey lab:", ""),
        ({"anon": True}, {"AZURE_STORAGE_KEY": "b3RoZXI="}, "", ""),
        ({"token": "bearer"}, {"AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI="}, "Bearer bearer", ""),
    ],
)
def test_azures_keys_and_signatures(
    faulty, monkeypatch, options, environ: dict[str, str], authorization: str, query: str
):
    """Explicit ones are not mixed with the environment's."""
    faulty.origin.hold("k", b"x")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    store = open_store(
        "az://bucket", {"account_name": "lab", "endpoint": f"{faulty.endpoint}/lab", **options}
    )
    assert store.get("k").data == b"x"
    assert faulty.requests == [f"GET /lab/bucket/k{query}"]
    assert faulty.headers[0].get("authorization", "").startswith(authorization)
    assert bool(faulty.headers[0].get("authorization")) == bool(authorization)


@pytest.mark.parametrize("protocol", ["az"])
def test_azures_connection_string_in_the_environment(faulty, monkeypatch):
    faulty.origin.hold("k", b"x")
    text = f"AccountName=lab;AccountKey=b3RoZXI=;BlobEndpoint={faulty.endpoint}/lab"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert open_store("az://bucket").get("k").data == b"x"
    with pytest.raises(StoreError):  # of another account: its key is not used for this one
        open_store("az://bucket", {"account_name": "other", "retry_deadline_s": 0, "timeout_s": 0.5}).get("k")
    assert len(faulty.requests) == 1


@pytest.mark.parametrize("protocol", ["gs"])
def test_googles_metadata_server(faulty, monkeypatch):
    faulty.origin.hold("k", b"x")
    faulty.origin.bearer = "of-the-machine"
    monkeypatch.setenv("GCE_METADATA_HOST", faulty.endpoint.removeprefix("http://"))
    assert open_store("gs://bucket", {"endpoint_url": faulty.endpoint}).get("k").data == b"x"
    assert faulty.requests[0].startswith("GET /computeMetadata/v1/instance/service-accounts/default/token")


def google_files(gcs: dict[str, str], google_file: str, tmp_path) -> dict[str, dict[str, object]]:
    (tmp_path / "subject").write_text("of-the-pod")
    key = json.loads(Path(google_file).read_text())
    federated = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": gcs["endpoint_url"] + "/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    return {"service_account": key, "external_account": federated}


@pytest.mark.parametrize("kind", ["service_account", "external_account"])
@pytest.mark.parametrize("how", ["option", "environment", "gcloud"])
def test_googles_credential_files(gcs, google_file, monkeypatch, tmp_path, kind: str, how: str):
    path = tmp_path / "application_default_credentials.json"
    path.write_text(json.dumps(google_files(gcs, google_file, tmp_path)[kind]))
    options: dict[str, object] = {"endpoint_url": gcs["endpoint_url"]}
    if how == "option":
        options["token"] = str(path)
    elif how == "environment":
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    else:
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    store = open_store(f"gs://bucket/credentials-{kind}-{how}", options)
    store.put("k", b"x")
    assert store.get("k").data == b"x"
    assert b"private_key" not in pickle.dumps(store)


def test_token_endpoint_that_does_not_answer_is_transient(google_file, tmp_path):
    told = {**json.loads(Path(google_file).read_text()), "token_uri": "http://127.0.0.1:1/token"}
    (tmp_path / "key.json").write_text(json.dumps(told))
    options = {
        "token": str(tmp_path / "key.json"),
        "endpoint_url": "http://127.0.0.1:1",
        "retry_deadline_s": 0,
    }
    with refusal(Transient, what="read", where="gs://bucket/k", given="UnauthenticatedError"):
        open_store("gs://bucket", options).get("k")


@pytest.mark.parametrize(
    "told",
    [
        {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"},
        {
            "type": "impersonated_service_account",
            "service_account_impersonation_url": "https://h/v1/projects/-/serviceAccounts/a@b.c:generateAccessToken",
            "source_credentials": {
                "type": "authorized_user",
                "client_id": "c",
                "client_secret": "s",
                "refresh_token": "r",
            },
        },
    ],
)
def test_files_of_people_and_impersonation_open_without_contact(tmp_path, told: dict[str, object]):
    (tmp_path / "key.json").write_text(json.dumps(told))
    assert open_store("gs://bucket", {"token": str(tmp_path / "key.json")}).url == "gs://bucket"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"type": "nonsense"}', '{"type": "service_account"}'])
def test_file_that_gives_no_credentials_is_named(tmp_path, text: str):
    (tmp_path / "key.json").write_text(text)
    with refusal(InvalidStore, what="credentials file", where="gs://bucket", given=f"{tmp_path}/key.json"):
        open_store("gs://bucket", {"token": str(tmp_path / "key.json")})


WRONG = {
    "s3": {"key": "AKIAWRONG", "secret": "PLANTEDwrongPLANTED"},
    "gs": {"bearer_token": "PLANTEDwrongPLANTED"},
    "az": {"sas_token": "sv=1&sig=PLANTEDwrongPLANTED"},
}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("verb", ["get", "put", "list", "head", "delete"])
def test_wrong_credentials_are_forbidden_at_once_and_not_shown(
    faulty, protocol, faulty_options, status: int, verb: str
):
    options = {n: v for n, v in faulty_options.items() if n not in ("account_key", "key", "secret")}
    store = open_store(f"{protocol}://bucket", {**options, **WRONG[protocol]})
    echo = b"<Error><Code>SignatureDoesNotMatch</Code><Message>you sent PLANTEDwrongPLANTED</Message></Error>"
    faulty.origin = lambda _: (status, echo, {})
    verbs = {
        "get": lambda s: s.get("k"),
        "put": lambda s: s.put("k", b""),
        "list": lambda s: list(s.list()),
        "head": lambda s: s.head("k"),
        "delete": lambda s: s.delete_many(["k"]),
    }
    with pytest.raises(Forbidden) as caught:
        verbs[verb](store)
    assert "PLANTEDwrong" not in str(caught.value) + repr(caught.value)
    assert len(faulty.requests) == (2 if (protocol, verb) == ("s3", "get") else 1), "signed in both ways"


@pytest.mark.parametrize("given", ["options", "provider"])
def test_wrong_credentials_of_this_process_are_to_be_checked(faulty, protocol, faulty_options, given: str):
    """Whether they travel to workers is another matter."""
    options = {
        n: v for n, v in faulty_options.items() if n not in ("account_key", "key", "secret", "bearer_token")
    }
    provider = {"credential_provider": lambda: {**PROVIDERS[protocol](1), "expires_at": None}}
    own = provider if given == "provider" else WRONG[protocol]
    store = open_store(f"{protocol}://bucket", {**options, **own})
    assert store.spec.dropped
    faulty.faults.extend([403] * 2)
    with pytest.raises(Forbidden, match=r"answered 403.*check the credentials") as caught:
        store.put("k", b"")
    assert "never pickled" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["s3"])
def test_unpickled_store_is_told_what_it_lacks(faulty, faulty_options):
    options = {**faulty_options, "metadata_endpoint": "http://127.0.0.1:1", "retry_deadline_s": 0}
    opened = open_store("s3://bucket", options)
    store = pickle.loads(pickle.dumps(opened))  # noqa: S301 - our own bytes
    with pytest.raises(
        Forbidden, match="key, secret were given where the store was first opened and are never"
    ):
        store.put("k", b"")
    assert faulty.requests == []


@pytest.mark.parametrize("protocol", ["s3", "gs"])
def test_anonymous_store_signs_nothing(faulty, protocol, google_file, monkeypatch):
    """Explicitly so: not with the environment's either. (Azure: `test_azures_keys_and_signatures`.)"""
    faulty.origin.hold("log/k", b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAPLANTEDKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "PLANTEDsecretPLANTED")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "PLANTEDtokenPLANTED")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", google_file)
    store = open_store(f"{protocol}://bucket", {"anon": True, "endpoint_url": faulty.endpoint})
    assert store.get("log/k").data == b"x"
    assert store.get_range("log/k", 0, 1).data == b"x"
    assert store.head("log/k").nbytes == 1
    assert [info.key for info in store.list("log/")] == ["log/k"]
    if protocol == "s3":  # obstore writes nothing to Google without credentials
        store.put("new", b"x")
        store.put_if_absent("newer", b"x")
    assert len(faulty.requests) == (6 if protocol == "s3" else 4)
    for asked, headers in zip(faulty.requests, faulty.headers, strict=True):
        assert (
            not {"authorization", "x-amz-security-token", "x-goog-iam-authorization-token"} & headers.keys()
        )
        assert not any(word in asked.lower() for word in ("signature", "credential", "token=", "accessid"))


@pytest.mark.parametrize("protocol", ["s3"])
@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken"])
def test_expired_credentials_say_so(faulty, faulty_store: Store, code: str):
    faulty.origin = lambda _: (400, f"<Error><Code>{code}</Code></Error>".encode(), {})
    with refusal(Forbidden, what="read", where="s3://bucket/k", given=code):
        faulty_store.get("k")


@pytest.mark.parametrize("protocol", ["s3", "gs"])
@pytest.mark.parametrize("lists", [True, False])
def test_missing_right_is_named(faulty, faulty_store: Store, protocol: str, lists: bool):
    """Without the right to list, a missing object answers 403: that is said, and not taken for a missing one."""
    store = faulty.origin

    def origin(request):
        listing = "list-type" in request.query
        if listing and lists:
            return store(request)
        return 403, b"<Error><Code>AccessDenied</Code></Error>", {}

    faulty.origin = origin
    rights = {"s3": ("s3:ListBucket", "s3:GetObject"), "gs": ("storage.objects.list", "storage.objects.get")}
    to_list, to_read = rights[protocol]
    for read in (lambda: faulty_store.get("log/1"), lambda: faulty_store.get_range("log/1", 0, 1)):
        with pytest.raises(Forbidden, match=to_read) as caught:
            read()
        assert (to_list in str(caught.value)) is not lists
    reads = 2 if protocol == "s3" else 1  # signed in both ways
    assert len(faulty.requests) == 2 * (reads + 1), "each read, and one listing to tell"
