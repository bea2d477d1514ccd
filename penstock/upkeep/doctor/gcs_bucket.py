"""Check the settings of a Google bucket through google-cloud-storage."""

import json
import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import quote

from loader.errors import MissingDependency
from loader.storage.cloud.gcs import gcs_config
from loader.storage.spec import bucket_and_prefix

from ...places import gcs_endpoint
from .finding import Finding, fail, note, ok, warn
from .lifecycle_rules import judge_rules, rules_of_gcs

COLD = {"NEARLINE", "COLDLINE", "ARCHIVE"}
_UPLOAD = re.compile(r"<Upload>(.*?)</Upload>", re.DOTALL)
_FIELD = re.compile(r"<(Key|Initiated)>([^<]*)<")


def gcs_bucket(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about a bucket's settings. Costs two requests. Raises: InvalidStore; MissingDependency."""
    try:
        from google.api_core.exceptions import Forbidden, GoogleAPIError, Unauthorized
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        raise MissingDependency(
            "google-cloud-storage is not installed, so the bucket's own settings were not asked for: "
            "pip install 'penstock-data[gcs]'"
        ) from None
    name, prefix = bucket_and_prefix(url)
    config, provider = gcs_config(url, options)
    try:
        bucket = _client(config, provider).bucket(name)
        # The client's own policy would retry for two minutes.
        bucket.reload(timeout=10, retry=None)
    except (Forbidden, Unauthorized):
        yield note(
            "settings", "not permitted to ask for the bucket's settings", "it takes storage.buckets.get"
        )
        return
    except (GoogleAPIError, GoogleAuthError, OSError, ValueError) as error:
        message = " ".join(str(error).split())  # on one line; a response may be a page of HTML
        yield note("settings", f"not asked: {type(error).__name__}: {message[:200]}")
        return
    yield from _settings(bucket)
    base = ""
    if prefix:
        base = f"{prefix}/"
    rules = rules_of_gcs(list(bucket.lifecycle_rules))
    yield from judge_rules(rules, base)
    try:
        yield _uploads(bucket, gcs_endpoint(url, options), base)
    except (GoogleAuthError, OSError) as error:
        yield note("uploads", f"not asked: {type(error).__name__}")


def _client(config: Mapping[str, Any], provider: Any) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage  # type: ignore[import-untyped]
    from google.oauth2.credentials import Credentials

    more: dict[str, Any] = {}
    if config.get("base_url"):
        more["client_options"] = {"api_endpoint": config["base_url"]}
    if config.get("service_account_key"):
        return storage.Client.from_service_account_info(json.loads(config["service_account_key"]), **more)
    if config.get("service_account"):
        return storage.Client.from_service_account_json(config["service_account"], **more)
    if config.get("skip_signature"):
        # A bucket is found without a project, but the client demands one.
        return storage.Client(project="none", credentials=AnonymousCredentials(), **more)
    if config.get("bearer_token"):
        more["credentials"] = Credentials(config["bearer_token"])
    elif provider is not None and hasattr(provider, "credentials"):  # google-auth read them from a file
        more["credentials"] = provider.credentials
    return storage.Client(project="none", **more)


def _settings(bucket: Any) -> Iterator[Finding]:
    key = bucket.default_kms_key_name
    if key:
        yield note(
            "encryption", f"objects are encrypted with {key}", "writers and readers need its CryptoKey role"
        )
    else:
        yield ok("encryption", "Google's own keys; no key of KMS is needed")
    if bucket.requester_pays:
        yield warn(
            "requester pays",
            "yes: the reader is billed",
            "obstore names no project to bill, so that it is refused unless the credentials may bill the bucket's own "
            "(resourcemanager.projects.createBillingAssignment): read through gcsfs, with the option "
            'fsspec={"requester_pays": "PROJECT"}, or copy the root into a bucket without it',
        )
    else:
        yield ok("requester pays", "no")
    soft = bucket.soft_delete_policy.retention_duration_seconds or 0
    if bucket.versioning_enabled or soft:
        kept = "object versioning is on"
        if not bucket.versioning_enabled:
            kept = f"soft delete keeps objects {soft / 86400:g} days"
        do = "end it or bound it (daysSinceNoncurrentTime): what a collector or a takedown deletes stays until then"
        yield warn("versioning", f"{kept}: what is deleted is kept", do)
    else:
        yield ok("versioning", "off, and no soft delete")
    if bucket.retention_period:
        what = f"a retention policy locks every object for {bucket.retention_period / 86400:g} days"
        do = "use a bucket without one: neither a collector nor a takedown can delete here before that"
        yield fail("object lock", what, do)
    elif bucket.default_event_based_hold:
        yield fail(
            "object lock", "a default event-based hold locks every new object", "switch that default off"
        )
    else:
        yield ok("object lock", "no retention policy, no default hold")
    if bucket.storage_class in COLD:
        what = f"{bucket.storage_class} by default: read at once, but every read is paid for, and early deletion too"
        yield warn("tiers", what, "STANDARD for what is trained from")
    else:
        yield ok("tiers", f"{bucket.storage_class or 'STANDARD'} by default")


def _uploads(bucket: Any, endpoint: str, base: str) -> Finding:
    # The XML API's, which the library cannot list
    check = "uploads"
    where = f"{endpoint.rstrip('/')}/{quote(bucket.name)}?uploads"
    answer = bucket.client._http.get(where, params={"prefix": base}, timeout=10)
    if answer.status_code in (401, 403):
        return note(check, "not permitted to ask", "it takes storage.multipartUploads.list")
    if answer.status_code != 200 or "<ListMultipartUploadsResult" not in answer.text:
        return note(check, f"this server does not answer that question ({answer.status_code})")
    begun = [_fields(one) for one in _UPLOAD.findall(answer.text)]
    if not begun:
        return ok(check, "no unfinished multipart uploads")
    oldest = min(begun, key=lambda upload: upload.get("Initiated", ""))
    more = " and more" if "<IsTruncated>true<" in answer.text else ""
    what = f"{len(begun):,}{more} unfinished multipart uploads, the oldest of {oldest.get('Initiated', '')[:10]} of "
    do = (
        "their parts are paid for and seen in no listing: a lifecycle rule AbortIncompleteMultipartUpload gives them "
        "up after so many days"
    )
    return warn(check, what + repr(oldest.get("Key", "")), do)


def _fields(upload: str) -> dict[str, str]:
    return {name: unescape(text) for name, text in _FIELD.findall(upload)}
