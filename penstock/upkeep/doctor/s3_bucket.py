"""Check the settings and objects of an S3 bucket through boto3."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any
from xml.etree.ElementTree import ParseError

from loader.errors import MissingDependency
from loader.redaction import redact
from loader.storage.cloud.s3 import s3_config
from loader.storage.spec import bucket_and_prefix, secret_values

from .finding import Finding, fail, note, ok, warn
from .lifecycle_rules import ARCHIVES, judge_rules, rules_of_s3

UNSET = {
    *(
        "NoSuchLifecycleConfiguration",
        "ObjectLockConfigurationNotFoundError",
        "ObjectLockConfigurationNotFound",
    ),
    "ServerSideEncryptionConfigurationNotFoundError",
}
AWS = ".amazonaws.com"
"""Suffix of Amazon's host names."""
PAGES = 10
"""Most pages of 1,000 keys searched for archived objects."""


class Bucket:
    """A boto3 client for one bucket, with the root's prefix ('' or ending in '/')."""

    def __init__(self, client: Any, name: str, prefix: str, config: Mapping[str, Any]) -> None:
        self.client = client
        self.name = name
        self.prefix = prefix
        self.config = config

    def ask(self, verb: str, **more: Any) -> Any:
        """Return the response, or {} if the setting is unset. Raises: ClientError; BotoCoreError."""
        from botocore.exceptions import ClientError  # type: ignore[import-untyped]

        # Among these questions, boto3 accepts it for listings only.
        payer = {"RequestPayer": "requester"} if self.config.get("request_payer") and "list" in verb else {}
        try:
            return getattr(self.client, verb)(Bucket=self.name, **payer, **more)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in UNSET:
                return {}
            raise


def _encryption(bucket: Bucket) -> Iterator[Finding]:
    check = "encryption"
    rules = bucket.ask("get_bucket_encryption").get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    default = rules[0].get("ApplyServerSideEncryptionByDefault", {}) if rules else {}
    if not str(default.get("SSEAlgorithm", "")).startswith("aws:kms"):
        yield ok(check, f"{default.get('SSEAlgorithm') or 'none'} by default; no key of KMS is needed")
        return
    what = f"every object is encrypted with the KMS key {default.get('KMSMasterKeyID', 'aws/s3')}"
    rights = "writers need kms:GenerateDataKey on it, readers kms:Decrypt"
    if rules[0].get("BucketKeyEnabled"):
        yield note(check, f"{what}, through a bucket key; {rights}")
    else:
        do = f"{rights}. Switch the bucket key on: without it each request is one of KMS too, paid and throttled"
        yield warn(check, what, do)


def _payer(bucket: Bucket) -> Iterator[Finding]:
    if bucket.ask("get_bucket_request_payment").get("Payer") != "Requester":
        yield ok("requester pays", "no: the bucket's owner pays for requests and transfer")
    elif bucket.config.get("request_payer"):
        yield note("requester pays", "yes, and the option requester_pays is given: the reader is billed")
    else:
        do = "give the option requester_pays=true; without it requests of other accounts are refused"
        yield warn("requester pays", "yes: the reader is billed", do)


def _versioning(bucket: Bucket) -> Iterator[Finding]:
    status = bucket.ask("get_bucket_versioning").get("Status", "never switched on")
    if status == "Enabled":
        do = (
            "add a lifecycle rule NoncurrentVersionExpiration (3 days, say): what a collector or a takedown deletes "
            "stays as a noncurrent version until then, and is paid for"
        )
        yield warn("versioning", "Enabled: deleted and overwritten objects are kept", do)
    else:
        yield ok("versioning", str(status) if status == "Suspended" else "off")


def _lock(bucket: Bucket) -> Iterator[Finding]:
    check = "object lock"
    configuration = bucket.ask("get_object_lock_configuration").get("ObjectLockConfiguration", {})
    default = configuration.get("Rule", {}).get("DefaultRetention")
    if configuration.get("ObjectLockEnabled") != "Enabled":
        yield ok(check, "off")
    elif default:
        term = f"{default['Days']} days" if default.get("Days") else f"{default.get('Years')} years"
        do = "use a bucket without default retention: neither a collector nor a takedown can delete here before that"
        yield fail(check, f"every new object is locked for {term} ({default.get('Mode')})", do)
    else:
        do = "lock nothing below the root: a takedown stays 'incomplete' as long as a lock lasts"
        yield warn(check, "on, without a default: single objects may be locked", do)


def _lifecycle(bucket: Bucket) -> Iterator[Finding]:
    rules = bucket.ask("get_bucket_lifecycle_configuration").get("Rules", [])
    yield from judge_rules(rules_of_s3(rules), bucket.prefix)


def _uploads(bucket: Bucket) -> Iterator[Finding]:
    check = "uploads"
    answer = bucket.ask("list_multipart_uploads", Prefix=bucket.prefix)
    uploads = answer.get("Uploads", [])
    if not uploads:
        yield ok(check, "no unfinished multipart uploads")
        return
    count = f"{len(uploads):,}{' and more' if answer.get('IsTruncated') else ''}"
    dated = [upload for upload in uploads if "Initiated" in upload]  # some servers leave it out
    oldest = min(dated, key=lambda upload: upload["Initiated"], default=uploads[0])
    since = "one of"
    if dated:
        since = f"the oldest of {oldest['Initiated']:%Y-%m-%d} of"
    what = f"{count} unfinished multipart uploads, {since} {oldest['Key']!r}"
    do = (
        "their parts are paid for and seen in no listing: a lifecycle rule AbortIncompleteMultipartUpload gives them "
        f"up, or `aws s3api abort-multipart-upload --bucket {bucket.name} --key {oldest['Key']} --upload-id "
        f"{oldest['UploadId']}`"
    )
    yield warn(check, what, do)


def _tiers(bucket: Bucket) -> Iterator[Finding]:
    check = "tiers"
    looked = 0
    archived = list[str]()
    more = dict[str, str]()
    for _ in range(PAGES):
        answer = bucket.ask("list_objects_v2", Prefix=bucket.prefix, **more)
        for entry in answer.get("Contents", []):
            looked += 1
            if entry.get("StorageClass") in ARCHIVES:
                archived.append(entry["Key"])
        if not answer.get("IsTruncated") or "NextContinuationToken" not in answer:
            break
        more = {"ContinuationToken": answer["NextContinuationToken"]}
    if archived:
        do = (
            "restore them, then read: `aws s3api restore-object --bucket "
            f"{bucket.name} --key {archived[0]} --restore-request Days=7`; it takes minutes to two days"
        )
        yield fail(
            check, f"{len(archived):,} of {looked:,} objects lie in an archive tier ({archived[0]} ...)", do
        )
    else:
        yield ok(check, f"none of {looked:,} listed objects is in an archive tier")


def _region(bucket: Bucket) -> Iterator[Finding]:
    # S3 states no location for its first region.
    there = bucket.ask("get_bucket_location").get("LocationConstraint") or "us-east-1"
    # The oldest buckets in Ireland still have the region's former name.
    there = "eu-west-1" if there == "EU" else there
    here = bucket.config["region"]
    endpoint = str(bucket.config.get("endpoint") or AWS)
    if there == here or AWS not in endpoint:  # other servers may name their regions freely
        yield ok("region", f"the bucket lies in {there}")
    else:
        yield warn(
            "region", f"the bucket lies in {there}, requests go to {here}", f"give the option region={there}"
        )


QUESTIONS: dict[str, Callable[[Bucket], Iterator[Finding]]] = {
    "region": _region,
    "encryption": _encryption,
    "requester pays": _payer,
    "versioning": _versioning,
    "object lock": _lock,
    "lifecycle": _lifecycle,
    "uploads": _uploads,
    "tiers": _tiers,
}
"""Check -> question, which may raise ClientError or BotoCoreError."""


DENIED = {"AccessDenied", "403", "AllAccessDisabled", "AccessDeniedException", "UnauthorizedOperation"}
STRANGERS = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "RequestTimeTooSkewed"),
    "NoSuchBucket",
}
UNKNOWN = {"NotImplemented", "MethodNotAllowed", "501", "405"}


def s3_bucket(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about a bucket's settings and objects.

    Costs seven requests, and one per 1,000 objects up to 10,000. Raises: InvalidStore; MissingDependency.
    """
    try:
        import boto3
        from botocore.config import Config  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
    except ImportError:
        raise MissingDependency(
            "boto3 is not installed, so the bucket's own settings were not asked for: pip install 'penstock-data[s3]'"
        ) from None
    bucket, prefix = bucket_and_prefix(url)
    config, provider = s3_config(url, options)
    # The doctor has no event loop in which it could wait for it.
    if iscoroutinefunction(provider):
        yield note("settings", "not asked: the credential_provider is asynchronous")
        return
    secrets = secret_values(options)
    try:
        keys = _keys(provider)
    except Exception as error:  # noqa: BLE001 - the user's function or profile may raise anything
        yield _not_asked("settings", error, secrets)
        return
    try:
        client = boto3.client(
            "s3",
            endpoint_url=config.get("endpoint"),
            region_name=config["region"],
            config=Config(
                signature_version=_unsigned_config() if config.get("skip_signature") else None,
                # A person waits for the report.
                retries={"total_max_attempts": 2},
                connect_timeout=5,
                read_timeout=10,
            ),
            **keys,
        )
    except (BotoCoreError, ValueError) as error:
        yield _not_asked("settings", error, secrets)
        return
    asked = Bucket(client, bucket, f"{prefix}/" if prefix else "", config)
    for check, question in QUESTIONS.items():
        try:
            yield from question(asked)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            yield _refusal_note(check, code)
            if code in STRANGERS:
                break  # every question would get this response
        except BotoCoreError as error:
            yield _not_asked(check, error, secrets)
        # Servers that imitate S3 may reply with HTML, or leave fields out.
        except (ResponseParserError, ParseError, LookupError, TypeError, ValueError) as error:
            brief = " ".join(str(error).split())[:200]
            yield note(check, f"this server's answer is not as S3's ({type(error).__name__}: {brief})")
    client.close()


def _not_asked(check: str, error: Exception, secrets: Sequence[str]) -> Finding:
    brief = redact(" ".join(str(error).split()), secrets)[:300]
    return note(check, f"not asked: {type(error).__name__}: {brief}")


def _refusal_note(check: str, code: str) -> Finding:
    if code in DENIED:
        return note(
            check, "not permitted to ask", "ask the bucket's owner, or run this with their credentials"
        )
    if code in UNKNOWN:
        return note(check, f"this server does not answer that question ({code})")
    return note(check, f"the server answered {code}")


def _keys(provider: Any) -> dict[str, Any]:
    if provider is None:
        return {}
    credentials = provider()
    return {
        "aws_access_key_id": credentials["access_key_id"],
        "aws_secret_access_key": credentials["secret_access_key"],
        "aws_session_token": credentials.get("token"),
    }


def _unsigned_config() -> Any:
    from botocore import UNSIGNED  # type: ignore[import-untyped]

    return UNSIGNED
