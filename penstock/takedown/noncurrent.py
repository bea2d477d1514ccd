"""What S3 keeps of objects that are gone: noncurrent versions in a versioned bucket, uploads that were never ended.

Asked of boto3, with the credentials that it finds, or a client that is given. Other stores keep such versions too
(soft delete, object versioning on GCS and Azure): nothing here can list them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from loader.storage import Store
from loader.storage.options import bucket_and_prefix

from .record import Place

logger = logging.getLogger(__name__)

_REMOTE = ("gs://", "az://", "abfs://", "abfss://", "azure://")


def noncurrent(store: Store, paths: Sequence[str], client: Any = None) -> Iterator[Place]:
    """A place for each version and upload of these paths that is kept, or one for all where none is. Costs a request
    per path, one per version, and one per 1,000 uploads."""
    place: Place = {"check": "noncurrent", "what": "noncurrent versions and unfinished uploads"}
    if store.url.startswith(_REMOTE):
        why = "whether the bucket keeps deleted objects is not looked at; see its settings"
        yield {**place, "clean": False, "why": why}
    if not store.url.startswith("s3://") or not paths:
        return
    try:
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
    except ImportError:
        yield {
            **place,
            "clean": False,
            "why": "boto3 lists them, and is not there: pip install 'penstock[s3]'",
        }
        return
    try:
        kept = list(_kept(client or _client(), store.url, paths))
    except (BotoCoreError, ClientError) as error:
        yield {**place, "clean": False, "why": f"they cannot be listed: {type(error).__name__}"}
        return
    for path, what, until, _ in kept:
        yield {
            **place,
            "what": what,
            "path": path,
            "clean": False,
            "why": until or "penstock takedown run --apply deletes it",
        }
    if not kept:
        yield {**place, "clean": True, "evidence": f"none of {len(paths)} paths has any"}


def delete_noncurrent(store: Store, paths: Sequence[str], client: Any = None) -> int:
    """Delete what is kept of these paths, but for what a lock keeps. Returns how many; none without boto3, or rights to
    list them, which the proof says."""
    if not store.url.startswith("s3://"):
        return 0
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return 0
    try:
        return _delete(client or _client(), store.url, paths)
    except (BotoCoreError, ClientError) as error:
        logger.warning("noncurrent versions in %s were not deleted: %s", store.url, type(error).__name__)
        return 0


def _delete(client: Any, url: str, paths: Sequence[str]) -> int:
    free = [delete for _, _, until, delete in _kept(client, url, paths) if not until]
    for delete in free:
        delete()
    return len(free)


def _client() -> Any:
    import boto3

    return boto3.client("s3")


_Kept = tuple[str, str, str, Callable[[], object]]
"""(path, what it is, why it cannot be deleted or "", what deletes it)."""


def _kept(client: Any, url: str, paths: Sequence[str]) -> Iterator[_Kept]:
    bucket, prefix = bucket_and_prefix(url)
    under = f"{prefix}/" if prefix else ""
    for path in paths:
        yield from _versions(client, bucket, under + path, path)
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=under):
        for upload in page.get("Uploads", ()):
            if (path := upload["Key"].removeprefix(under)) in paths:

                def abort(key: str = upload["Key"], id: str = upload["UploadId"]) -> object:
                    return client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=id)

                yield path, "an upload that was not ended", "", abort


def _versions(client: Any, bucket: str, key: str, path: str) -> Iterator[_Kept]:
    """Every version but the current one; a delete marker has no bytes."""
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=key):
        for one in page.get("Versions", ()):
            if one["Key"] != key or one["IsLatest"]:
                continue
            id = one["VersionId"]

            def delete(id: str = id) -> object:
                return client.delete_object(Bucket=bucket, Key=key, VersionId=id)

            yield path, f"noncurrent version {id}", _locked(client, bucket, key, id), delete


def _locked(client: Any, bucket: str, key: str, id: str) -> str:
    said = client.head_object(Bucket=bucket, Key=key, VersionId=id)
    if said.get("ObjectLockLegalHoldStatus") == "ON":
        return "a legal hold keeps it"
    if until := said.get("ObjectLockRetainUntilDate"):
        return f"an object lock keeps it until {until:%Y-%m-%d}"
    return ""
