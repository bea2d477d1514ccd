"""What a bucket's owner has set is named; what may not be asked is said to be unknown."""

import json
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.upkeep.doctor.azure_container import azure_container, azure_credential
from penstock.upkeep.doctor.gcs_bucket import gcs_bucket
from penstock.upkeep.doctor.lifecycle_rules import Rule, judge_rules, rules_of_gcs, rules_of_s3
from penstock.upkeep.doctor.s3_bucket import QUESTIONS, Bucket, s3_bucket
from penstock.upkeep.doctor.target import clock

YEAR_S = 365 * 86_400


def by_check(found):
    """check -> (level, text) of the worst finding."""
    order = {"ok": 0, "note": 1, "warn": 2, "fail": 3}
    worst = {}
    for one in sorted(found, key=lambda one: order[one.level]):
        worst[one.check] = (one.level, f"{one.what} {one.do}")
    return worst


def levels(found):
    return {check: level for check, (level, _) in by_check(found).items()}


@pytest.mark.parametrize(
    ("ahead_s", "level", "told"),
    [
        (0, "ok", "agree"),
        (300, "warn", "5 minutes ahead"),
        (-7200, "fail", "2.0 hours behind"),
        (YEAR_S, "fail", "365 days ahead of"),
        (-YEAR_S, "fail", "365 days behind"),
    ],
)
def test_servers_clock(gateway, s3, ahead_s, level, told):
    gateway.ahead_s = ahead_s
    (found,) = clock("s3://doctor/root", s3)
    assert found.level == level
    assert told in found.what


def test_server_whose_clock_cannot_be_read(answers):
    (found,) = clock("s3://doctor/root", {"endpoint_url": answers(lambda path, query: (200, {}, b""))})
    assert found.level == "ok"
    (found,) = clock("s3://doctor/root", {"endpoint_url": "http://127.0.0.1:1"})
    assert (found.level, "not asked for its time" in found.what) == ("note", True)


def test_quiet_bucket(s3, bucket):
    client, name = bucket
    client.put_bucket_lifecycle_configuration(
        Bucket=name,
        LifecycleConfiguration={
            "Rules": [
                {
                    "ID": "tidy",
                    "Status": "Enabled",
                    "Filter": {"Prefix": ""},
                    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
                }
            ]
        },
    )
    assert set(levels(s3_bucket(f"s3://{name}/root", s3)).values()) == {"ok"}


def test_bucket_with_everything_against_it(gateway, s3, running):
    client, name = running[2], "everything"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    retention = {"Mode": "GOVERNANCE", "Days": 3}
    client.put_object_lock_configuration(
        Bucket=name,
        ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}},
    )
    client.put_object(
        Bucket=name, Key="root/data/x.tar", Body=b"x", StorageClass="GLACIER", ChecksumAlgorithm="CRC32"
    )
    kms = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "arn:aws:kms:us-east-1:1:key/abc"}
    client.put_bucket_encryption(
        Bucket=name,
        ServerSideEncryptionConfiguration={"Rules": [{"ApplyServerSideEncryptionByDefault": kms}]},
    )
    rule = {
        "ID": "sweep",
        "Status": "Enabled",
        "Filter": {"Prefix": "root/data/"},
        "Expiration": {"Days": 30},
    }
    client.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [rule]})
    upload = client.create_multipart_upload(Bucket=name, Key="root/data/y.tar")["UploadId"]
    gateway.told["requestPayment"] = (
        "<RequestPaymentConfiguration><Payer>Requester</Payer></RequestPaymentConfiguration>"
    )
    found = by_check(s3_bucket(f"s3://{name}/root", s3))
    assert {check: level for check, (level, _) in found.items()} == {
        "region": "ok",
        "encryption": "warn",
        "requester pays": "warn",
        "versioning": "warn",
        "object lock": "fail",
        "lifecycle": "fail",
        "uploads": "warn",
        "tiers": "fail",
    }
    assert "key/abc" in found["encryption"][1]
    assert "requester_pays=true" in found["requester pays"][1]
    assert "locked for 3 days (GOVERNANCE)" in found["object lock"][1]
    assert "rule 'sweep' deletes data/* of the root 30 days" in found["lifecycle"][1]
    assert upload in found["uploads"][1]
    assert f"aws s3api restore-object --bucket {name} --key root/data/x.tar" in found["tiers"][1]


def test_what_may_not_be_asked_is_said(gateway, s3, bucket):
    gateway.denied = {"lifecycle", "object-lock", "encryption"}
    found = by_check(s3_bucket(f"s3://{bucket[1]}/root", s3))
    assert {check for check, (level, _) in found.items() if level == "note"} == {
        "lifecycle",
        "object lock",
        "encryption",
    }
    assert all("not permitted to ask" in text for level, text in found.values() if level == "note")
    assert found["versioning"][0] == "ok"


def test_keys_that_nobody_knows_are_told_once(answers):
    body = b"<Error><Code>InvalidAccessKeyId</Code></Error>"
    options = {
        "key": "AKIASTRANGER",
        "secret": "PLANTEDsecret",
        "endpoint_url": answers(lambda *_: (403, {}, body)),
    }
    (found,) = s3_bucket("s3://doctor/root", options)
    assert (found.level, found.what) == ("note", "the server answered InvalidAccessKeyId")


@pytest.mark.parametrize(
    ("endpoint", "level"),
    [("", "warn"), ("https://s3.us-east-1.amazonaws.com", "warn"), ("https://minio.lab:9000", "ok")],
)
def test_bucket_in_another_region(gateway, running, endpoint, level):
    """What a server of one's own calls its region binds nobody."""
    gateway.told["location"] = "<LocationConstraint>eu-west-1</LocationConstraint>"
    config = {"region": "us-east-1", "endpoint": endpoint}
    (found,) = QUESTIONS["region"](Bucket(running[2], "doctor", "root/", config))
    assert (found.level, "lies in eu-west-1" in found.what) == (level, True)
    assert found.do == ("give the option region=eu-west-1" if level == "warn" else "")


def test_anonymous_and_profile_less_clients_are_asked_as_the_options_say(gateway, s3, bucket):
    anonymous = {"anon": True, "endpoint_url": s3["endpoint_url"]}
    assert levels(s3_bucket(f"s3://{bucket[1]}/root", anonymous))["versioning"] == "ok"


GOOGLE = {
    "kind": "storage#bucket",
    "name": "bucket",
    "location": "EU",
    "storageClass": "STANDARD",
}


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({}, {"lifecycle": "warn"}),
        (
            {"encryption": {"defaultKmsKeyName": "projects/p/key"}},
            {"encryption": "note", "lifecycle": "warn"},
        ),
        ({"billing": {"requesterPays": True}}, {"requester pays": "warn", "lifecycle": "warn"}),
        ({"versioning": {"enabled": True}}, {"versioning": "warn", "lifecycle": "warn"}),
        (
            {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
            {"versioning": "warn", "lifecycle": "warn"},
        ),
        ({"retentionPolicy": {"retentionPeriod": "86400"}}, {"object lock": "fail", "lifecycle": "warn"}),
        ({"defaultEventBasedHold": True}, {"object lock": "fail", "lifecycle": "warn"}),
        ({"storageClass": "ARCHIVE"}, {"tiers": "warn", "lifecycle": "warn"}),
        (
            {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]}},
            {"lifecycle": "fail"},
        ),
        (
            {
                "lifecycle": {
                    "rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}]
                }
            },
            {},
        ),
    ],
    ids=lambda one: next(iter(one), "plain") if isinstance(one, dict) else "",
)
def test_bucket_of_googles(answers, told, wanted):
    body = json.dumps({**GOOGLE, **told}).encode()
    found = levels(google_bucket(answers, body, UPLOADS))
    assert {check: level for check, level in found.items() if level != "ok"} == wanted
    assert found["uploads"] == "ok"


UPLOADS = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{}</ListMultipartUploadsResult>"
UPLOAD = "<Upload><Key>root/a&amp;b</Key><UploadId>1</UploadId><Initiated>{}</Initiated></Upload>"


def google_bucket(answers, body, uploads, status=200):
    """What is found where the JSON API says `body` of a bucket, and the XML API `uploads` of it."""

    def answer(path, query):
        if path == "/bucket":
            return status, {"Content-Type": "application/xml"}, uploads.encode()
        return 200, {"Content-Type": "application/json"}, body

    return gcs_bucket("gs://bucket/root", {"endpoint_url": answers(answer), "anon": True})


@pytest.mark.parametrize(
    ("uploads", "status", "level", "told"),
    [
        (
            UPLOADS.format(
                UPLOAD.format("2026-01-02T03:04:05.678Z") + UPLOAD.format("2025-12-31T23:59:59.999Z")
            ),
            *(200, "warn", "2 unfinished multipart uploads, the oldest of 2025-12-31 of 'root/a&b'"),
        ),
        (
            UPLOADS.format(UPLOAD.format("2026-01-02T03:04:05.678Z")).replace("false", "true"),
            *(200, "warn", "1 and more unfinished"),
        ),
        ("<Error><Code>AccessDenied</Code></Error>", 403, "note", "storage.multipartUploads.list"),
        ("<ListBucketResult></ListBucketResult>", 200, "note", "does not answer that question"),
    ],
    ids=["two", "a page", "not permitted", "another answer"],
)
def test_unfinished_uploads_to_a_bucket_of_googles(answers, uploads, status, level, told):
    found = by_check(google_bucket(answers, json.dumps(GOOGLE).encode(), uploads, status))
    assert found["uploads"][0] == level
    assert told in found["uploads"][1]


def test_who_pays_for_a_bucket_of_googles(answers):
    body = json.dumps({**GOOGLE, "billing": {"requesterPays": True}}).encode()
    _, text = by_check(google_bucket(answers, body, UPLOADS))["requester pays"]
    assert 'fsspec={"requester_pays": "PROJECT"}' in text, "tests/storage has what that sends"


def test_googles_settings_that_may_not_be_asked(answers):
    endpoint = answers(lambda path, query: (403, {"Content-Type": "application/json"}, b"{}"))
    found = by_check(gcs_bucket("gs://bucket/root", {"endpoint_url": endpoint, "anon": True}))
    assert list(found) == ["settings"]
    assert "not permitted to ask" in found["settings"][1]


XML = {"Content-Type": "application/xml"}
BLOB = """<Blob><Name>root/data/x.tar</Name><Properties><Content-Length>1</Content-Length><Etag>0x1</Etag>
<Creation-Time>Wed, 21 Oct 2015 07:28:00 GMT</Creation-Time><Last-Modified>Wed, 21 Oct 2015 07:28:00 GMT</Last-Modified>
<BlobType>BlockBlob</BlobType><AccessTier>{tier}</AccessTier></Properties></Blob>"""


QUIET = {"x-ms-has-legal-hold": "false", "x-ms-has-immutability-policy": "false", "etag": '"0x1"'}


class Container:
    """An account with a container, as it is told, under /account/bucket; what was put is in `blobs`."""

    def __init__(self, *, tier="Hot", kept="false", version="", listed="", write=201, **headers):
        self.blob, self.kept, self.write = listed or BLOB.format(tier=tier), kept, write
        self.said = {"x-ms-version-id": version} if version else {}
        self.headers = QUIET | {f"x-ms-{name.replace('_', '-')}": value for name, value in headers.items()}
        self.blobs = {}

    def __call__(self, request):
        if request.method == "PUT":
            if self.write == 201:
                self.blobs[request.path] = request.body
            return self.write, b"", {"etag": '"0x1"', **self.said}
        if request.method == "DELETE":
            del self.blobs[request.path]
            return 202, b"", {}
        if request.query.get("comp") == "list":
            blobs = f"<Blobs>{self.blob}</Blobs><NextMarker/>"
            return 200, f'<?xml version="1.0"?><EnumerationResults>{blobs}</EnumerationResults>'.encode(), XML
        if request.query.get("comp") == "properties":
            policy = (
                f"<DeleteRetentionPolicy><Enabled>{self.kept}</Enabled><Days>7</Days></DeleteRetentionPolicy>"
            )
            told = f"<StorageServiceProperties>{policy}</StorageServiceProperties>"
            return 200, f'<?xml version="1.0"?>{told}'.encode(), XML
        return 200, b"", self.headers


@pytest.fixture
def azure_findings(shared):
    """azure_findings(origin) -> what is found of az://bucket/root there."""

    def look(origin):
        server = shared("servers/http").HttpServer(origin)
        endpoint = f"{server.endpoint}/account"
        options = {"account_name": "account", "sas_token": "sig=PLANTED", "endpoint": endpoint}
        try:
            return list(azure_container("az://bucket/root", options))
        finally:
            server.close()

    return look


BEGUN = """<Blob><Name>root/data/begun.tar</Name><Properties><Content-Length>0</Content-Length>
<BlobType>BlockBlob</BlobType></Properties></Blob>"""


@pytest.mark.parametrize(
    ("told", "wanted", "words"),
    [
        ({}, {}, ""),
        ({"tier": "Archive"}, {"tiers": "fail"}, "set-tier"),
        ({"has_legal_hold": "true"}, {"object lock": "fail"}, "legal hold"),
        ({"kept": "true"}, {"versioning": "warn"}, "soft delete keeps deleted blobs for 7 days"),
        ({"version": "2026-11-22T09:00:00.1234567Z"}, {"versioning": "warn"}, "blob versioning is on"),
        ({"write": 403}, {"versioning": "note"}, "is not known: the server answered 403 to a write"),
        ({"listed": BEGUN}, {"uploads": "warn"}, "1 blobs were begun and never committed"),
        (
            {"default_encryption_scope": "lab", "deny_encryption_scope_override": "true"},
            *({"encryption": "note"}, "in the scope lab"),
        ),
    ],
    ids=lambda one: next(iter(one), "plain") if isinstance(one, dict) else "",
)
def test_container_of_azures(azure_findings, told, wanted, words):
    container = Container(**told)
    found = by_check(azure_findings(container))
    assert {check: level for check, (level, _) in found.items() if level != "ok"} == {
        "lifecycle": "note",
        **wanted,
    }
    assert words in " ".join(text for _, text in found.values())
    assert container.blobs == {}


def test_container_that_may_not_be_asked(azure_findings):
    found = by_check(azure_findings(lambda _: (403, b"", {})))
    assert {level for level, _ in found.values()} == {"note"}
    assert "not permitted to ask" in found["object lock"][1]


KEYS = (
    "data/a/b.tar",
    "log/000000000001.json",
    "penstock.json",
    "heartbeats/t.json",
    "leases/v/h.json",
    "plans/x.json",
)
prefixes = st.sampled_from(["", "a/", "a/b/", "b/"])
rule_prefixes = st.one_of(
    st.sampled_from(["", "a", "a/", "a/b", "a/b/", "b/", "c"]),
    st.builds(lambda root, key, n: (root + key)[:n], prefixes, st.sampled_from(KEYS), st.integers(0, 30)),
)


@given(root=prefixes, prefix=rule_prefixes)
@settings(derandomize=True, deadline=None)
def test_rule_fails_where_it_deletes_what_a_root_needs(root, prefix):
    """As S3 means it: a rule meets the keys that begin with its prefix."""
    needed = [root + key for key in KEYS if not key.startswith(("heartbeats/", "leases/"))]
    met = any(key.startswith(prefix) for key in needed)
    found = [
        one.level
        for one in judge_rules([Rule(name="r", prefix=prefix, deletes="after 1 day", aborts=True)], root)
    ]
    if met:
        assert "fail" in found
    elif not any((root + key).startswith(prefix) for key in KEYS):
        # (a prefix of names that no root has today is taken for one that it may have)
        assert ("fail" in found) == prefix.startswith(root)


@pytest.mark.parametrize(
    "rule",
    [
        {"Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}},
        {"Status": "Enabled", "Filter": {"Tag": {"Key": "a", "Value": "b"}}, "Expiration": {"Days": 1}},
        {
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": "", "Tags": [{"Key": "a"}]}},
            "Expiration": {"Days": 1},
        },
        {"Status": "Enabled", "Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}},
        {"Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "Transitions": [{"Days": 9, "StorageClass": "STANDARD_IA"}],
        },
        {"Status": "Enabled", "Prefix": "other/", "Expiration": {"Date": "2030-01-01"}},
    ],
)
def test_rules_that_meet_no_live_object_of_a_root(rule):
    assert "fail" not in [one.level for one in judge_rules(rules_of_s3([rule]), "root/")]


@pytest.mark.parametrize(
    "rule",
    [
        {"Status": "Enabled", "Prefix": "", "Expiration": {"Date": "2030-01-01"}},
        {
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": "ro", "ObjectSizeGreaterThan": 1}},
            "Expiration": {"Days": 1},
        },
        {"Status": "Enabled", "Filter": {}, "Transitions": [{"Days": 9, "StorageClass": "DEEP_ARCHIVE"}]},
    ],
)
def test_rules_that_do(rule):
    assert "fail" in [one.level for one in judge_rules(rules_of_s3([rule]), "root/")]


@pytest.mark.parametrize(
    ("condition", "meets"),
    [
        ({"age": 30}, True),
        ({"age": 30, "matchesPrefix": ["other/", "root/data"]}, True),
        ({"age": 30, "matchesPrefix": ["other/"]}, False),
        ({"age": 30, "isLive": False}, False),
        ({"numNewerVersions": 3}, False),
        ({"noncurrentTimeBefore": "2020-01-01", "matchesPrefix": ["root/"]}, False),
        ({"age": 30, "daysSinceNoncurrentTime": 0}, False),
        ({"daysSinceCustomTime": 0}, False),
        ({"age": 30, "customTimeBefore": "2030-01-01"}, False),
        ({"matchesPrefix": ["root/data"]}, True),
        ({"matchesPrefix": ["other/"]}, False),
        ({"matchesPrefix": ["root/heartbeats/"]}, False),
        ({"matchesSuffix": [".json"]}, True),
        ({"matchesSuffix": [".tmp", "r"]}, True),
        ({"matchesSuffix": ["-00000.tar"]}, True),
        ({"matchesSuffix": [".tmp", ".log"]}, False),
        ({"isLive": True}, True),
        ({"matchesStorageClass": ["STANDARD"]}, True),
        ({"numNewerVersions": 0}, True),
        ({}, True),
    ],
)
def test_rules_of_googles(condition, meets):
    rules = rules_of_gcs([{"action": {"type": "Delete"}, "condition": condition}])
    assert ("fail" in [one.level for one in judge_rules(rules, "root/")]) == meets


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ({"age": 0}, "root (data/, log/ ...) 0 days after they were written"),
        (
            {"age": 30, "createdBefore": "2020-01-01"},
            "30 days after they were written, those written before 2020",
        ),
        ({"isLive": True, "matchesPrefix": ["root/data/"]}, "data/* of the root as soon as they are written"),
        (
            {"matchesSuffix": [".tar", ".json"], "matchesStorageClass": ["NEARLINE"]},
            "as soon as they are written, those that end in .tar or .json, those of the storage class NEARLINE",
        ),
    ],
)
def test_what_a_rule_of_googles_deletes_is_said(condition, told):
    (fail,) = [
        one
        for one in judge_rules(
            rules_of_gcs([{"action": {"type": "Delete"}, "condition": condition}]), "root/"
        )
        if one.level == "fail"
    ]
    assert told in fail.what


def test_provider_that_must_be_awaited_is_not_asked(s3):
    async def later():
        return {}

    options = {"endpoint_url": s3["endpoint_url"], "credential_provider": later}
    (found,) = s3_bucket("s3://doctor/root", options)
    assert (found.level, "asynchronous" in found.what) == ("note", True)


def _raise_sealed():
    raise RuntimeError("vault is sealed")


def test_credentials_that_nobody_gives_are_a_note(s3):
    options = {"endpoint_url": s3["endpoint_url"], "credential_provider": _raise_sealed}
    (found,) = s3_bucket("s3://doctor/root", options)
    assert (found.level, found.what) == ("note", "not asked: RuntimeError: vault is sealed")


def test_profile_without_a_login_is_a_note(s3, tmp_path, monkeypatch):
    told = "[profile lab]\nsso_start_url = https://lab.example/start\nsso_region = us-east-1\n"
    (tmp_path / "config").write_text(f"{told}sso_account_id = 111122223333\nsso_role_name = reader\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    options = {"endpoint_url": s3["endpoint_url"], "profile": "lab"}
    (found,) = s3_bucket("s3://doctor/root", options)
    assert (found.level, "not asked: SSOTokenLoadError" in found.what) == ("note", True)


def test_region_that_is_none_is_a_note(s3):
    (found,) = s3_bucket("s3://doctor/root", {**s3, "region": "us east"})
    assert (found.level, "not asked: InvalidRegionError" in found.what) == ("note", True)


@pytest.mark.parametrize("body", [b"<html><title>It works</title><br></html>", b'{"status":"ok"}', b""])
def test_answers_that_are_no_s3s_are_notes(s3, answers, body):
    at = answers(lambda path, query: (200, {}, body))
    found = list(s3_bucket("s3://doctor/root", {**s3, "endpoint_url": at}))
    assert {one.check for one in found} == set(QUESTIONS)
    (region,) = [one for one in found if one.check == "region"]
    assert (region.level, "not as S3's" in region.what) == ("note", True)


def test_what_a_server_leaves_out_of_its_lists(gateway, s3, bucket):
    upload = "<Upload><Key>root/a</Key><UploadId>1</UploadId></Upload>"
    gateway.told["uploads"] = f"<ListMultipartUploadsResult>{upload}</ListMultipartUploadsResult>"
    entry = "<Contents><Key>root/a</Key><Size>1</Size></Contents>"
    gateway.told["list-type"] = f"<ListBucketResult><IsTruncated>true</IsTruncated>{entry}</ListBucketResult>"
    found = by_check(s3_bucket(f"s3://{bucket[1]}/root", s3))
    assert found["uploads"][0] == "warn"
    assert "1 unfinished multipart uploads, one of 'root/a'" in found["uploads"][1]
    assert found["tiers"][0] == "ok"


def test_what_speaks_no_http_has_no_clock():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        (found,) = clock(
            "s3://doctor/root", {"endpoint_url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        )
        thread.join()
    assert (found.level, "not asked for its time: SSH-2.0" in found.what) == ("note", True)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"client_secret": "s", "client_id": "c", "tenant_id": "t"}, "ClientSecretCredential"),
        (
            {"federated_token_file": "/token", "client_id": "c", "tenant_id": "t"},
            "WorkloadIdentityCredential",
        ),
        ({"use_azure_cli": True}, "AzureCliCredential"),
        ({"client_id": "c"}, "DefaultAzureCredential"),
    ],
)
def test_azure_is_asked_with_the_options_credentials(config, kind):
    assert type(azure_credential(config)).__name__ == kind


@pytest.mark.parametrize("options", [{"token": "PLANTED"}, {"credential_provider": _raise_sealed}])
def test_azure_is_not_asked_with_other_credentials(options):
    (found,) = azure_container("az://cont/root", {"account_name": "lab", **options})
    assert (found.level, found.what.startswith("not asked: ")) == ("note", True)
    assert "PLANTED" not in found.what
