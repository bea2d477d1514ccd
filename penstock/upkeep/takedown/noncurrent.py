"""Remains of deleted objects that stores keep: noncurrent versions, soft-deleted objects, unfinished uploads.

S3 is listed through boto3, Azure through azure-storage-blob. Google Cloud Storage and fsspec stores are not listed.
A local folder keeps unfinished files that killed writers left.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from loader.storage import Store
from loader.storage.cloud.azure import azure_config
from loader.storage.disk.unlisted_files import is_unfinished, list_with_unfinished
from loader.storage.mirror import primary_of
from loader.storage.options import bucket_and_prefix

from ...denied.record import Place
from ..doctor.azure_container import azure_credential, azure_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One remnant of a deleted object."""

    path: str
    """Object path."""
    what: str
    """Human-readable kind."""
    until: str
    """Why it cannot be deleted here, or ""."""
    delete: Callable[[], object] | None = None
    """Deletes it if `until` is ""; None if penstock cannot."""


class Unseen(Exception):
    """Raised if a store's remains of deleted objects cannot be listed. The text has the reason."""


SEEN = ["snapshots", "versions", "deleted", "deletedwithversions", "uncommittedblobs"]


def kept_by_azure(url: str, paths: Sequence[str]) -> Iterator[Kept]:
    """Yield the remains of these paths. Costs a request per path, and one for the account.

    Raises: Unseen if they cannot be listed; InvalidStore.
    """
    try:
        from azure.core.exceptions import AzureError
        from azure.storage.blob import BlobServiceClient
    except ImportError:
        raise Unseen(
            "azure-storage-blob lists them, and is not there: pip install 'penstock-data[azure]'"
        ) from None
    place, prefix = bucket_and_prefix(url)
    container, _, host = place.partition("@")
    config, _ = azure_config(url, {}, host)
    under = f"{prefix}/" if prefix else ""
    if not (endpoint := azure_endpoint(url, {})):
        raise Unseen("neither the URL nor the environment names the account")
    try:
        with BlobServiceClient(endpoint, credential=azure_credential(config)) as service:
            if service.get_account_information()["is_hns_enabled"]:
                raise Unseen("an account with a hierarchical namespace does not list what it has deleted")
            blobs = service.get_container_client(container)
            for path in paths:
                yield from _of(blobs, under + path, path)
    except (AzureError, ImportError, ValueError) as error:
        raise Unseen(f"they cannot be listed: {type(error).__name__}") from None


def _of(blobs: Any, name: str, path: str) -> Iterator[Kept]:
    for blob in blobs.list_blobs(name_starts_with=name, include=SEEN):
        if blob.name != name:
            continue
        if blob.deleted:
            days = blob.remaining_retention_days
            yield Kept(path=path, what="a deleted blob", until=f"soft delete keeps it for {days} more days")
        elif blob.snapshot:
            yield Kept(path=path, what=f"snapshot {blob.snapshot}", until="delete it with Azure's own tools")
        elif blob.has_versions_only or (blob.version_id and not blob.is_current_version):
            what = f"noncurrent version {blob.version_id or ''}".rstrip()
            yield Kept(path=path, what=what, until="delete it with Azure's own tools")
        elif not blobs.get_blob_client(name).exists():
            until = "Azure forgets them a week after the last of them"
            yield Kept(path=path, what="blocks that were never committed", until=until)


logger = logging.getLogger(__name__)

RUN = "penstock takedown run --apply"
SIGNS_OF_LIFE = ("heartbeats/", "leases/")
"""Prefixes that are rewritten all the time and hold no samples."""
_AZURE = ("az://", "abfs://", "abfss://", "azure://")


def noncurrent(
    store: Store, paths: Sequence[str], client: Any = None, *, stated: bool = False, mirror: str = ""
) -> Iterator[Place]:
    """Yield a check result for each version and upload kept of these paths, or one clean result if there is none.

    Costs a request per path, one per version, and one per 1,000 uploads; a walk for a local folder.

    client: boto3 client for S3. stated: the caller states that an unlistable store keeps nothing. mirror: the
    mirror's URL, or "".
    """
    # The URL decides: a store with mirrors counts as local if one of them is.
    if not paths:
        return
    if urlsplit(store.url).scheme in ("", "file", "memory"):
        yield from _unfinished(primary_of(store), mirror)
        return
    what = "noncurrent versions and unfinished uploads"
    place: Place = {"check": "noncurrent", "what": what, "url": mirror or store.url}
    run = f"{RUN} --mirror {mirror}" if mirror else RUN
    count = 0
    try:
        for kept in _kept(store.url, paths, client):
            count += 1
            why = kept.until or f"{run} deletes it"
            yield {**place, "what": kept.what, "path": kept.path, "clean": False, "why": why}
    except Unseen as unseen:
        if stated:
            evidence = f"stated by the author of this proof, not listed ({unseen}): the store keeps none"
            yield {**place, "clean": True, "evidence": evidence}
        else:
            do = f"if its operator confirms that it keeps none, pass --keeps-nothing {mirror or store.url}"
            yield {**place, "clean": False, "why": f"{unseen}; {do}"}
        return
    if not count:
        yield {**place, "clean": True, "evidence": f"none of {len(paths)} paths has any"}


def _unfinished(store: Store, mirror: str) -> Iterator[Place]:
    by_hand = "its writer is at work, or was killed: then delete the file"
    in_data, elsewhere = (
        f"penstock gc sweep --apply deletes it when {when}"
        for when in ("its transaction is over", "its writer has long been silent")
    )
    for info in list_with_unfinished(store, ""):
        if is_unfinished(info.key) and not info.key.startswith(SIGNS_OF_LIFE):
            why = elsewhere if not info.key.startswith("data/") else by_hand if mirror else in_data
            place: Place = {"check": "noncurrent", "what": "a file that was not finished", "path": info.key}
            yield {**place, "url": mirror or store.url, "clean": False, "why": why}


def delete_noncurrent(store: Store, paths: Sequence[str], client: Any = None) -> int:
    """Delete what an S3 bucket keeps of these paths, unless locked. Returns the number of deletions.

    Deletes nothing if boto3 or the permission to list is missing. The proof then names the reason.
    """
    if not store.url.startswith("s3://") or not paths:
        return 0
    try:
        return _delete(client, store.url, paths)
    except Unseen as why:
        logger.warning("noncurrent versions in %s were not deleted: %s", store.url, why)
        return 0


def _kept(url: str, paths: Sequence[str], client: Any) -> Iterator[Kept]:
    if url.startswith("s3://"):
        yield from _kept_by_s3(client, url, paths)
    elif url.startswith(_AZURE):
        yield from kept_by_azure(url, paths)
    elif url.startswith("gs://"):
        raise Unseen("object versions, soft delete and unfinished uploads of Google's are not looked at")
    else:
        raise Unseen("whether a store of this kind keeps deleted objects is not known")


def _delete(client: Any, url: str, paths: Sequence[str]) -> int:
    free = [one.delete for one in _kept_by_s3(client, url, paths) if one.delete and not one.until]
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    try:
        for delete in free:
            delete()
    except (BotoCoreError, ClientError) as error:
        raise Unseen(type(error).__name__) from None
    return len(free)


def _kept_by_s3(client: Any, url: str, paths: Sequence[str]) -> Iterator[Kept]:
    try:
        import boto3  # noqa: F401 - s3fs brings only botocore
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise Unseen("boto3 lists them, and is not there: pip install 'penstock-data[s3]'") from None
    try:
        yield from _listed(client or _client(), url, paths)
    except (BotoCoreError, ClientError) as error:
        raise Unseen(f"they cannot be listed: {type(error).__name__}") from None


def _client() -> Any:
    import boto3

    return boto3.client("s3")


def _listed(client: Any, url: str, paths: Sequence[str]) -> Iterator[Kept]:
    bucket, prefix = bucket_and_prefix(url)
    under = f"{prefix}/" if prefix else ""
    for path in paths:
        yield from _versions(client, bucket, under + path, path)
    names = set(paths)
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=under):
        for upload in page.get("Uploads", ()):
            if (path := upload["Key"].removeprefix(under)) in names:

                def abort(key: str = upload["Key"], id: str = upload["UploadId"]) -> object:
                    return client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=id)

                yield Kept(path=path, what="an upload that was not ended", until="", delete=abort)


def _versions(client: Any, bucket: str, key: str, path: str) -> Iterator[Kept]:
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=key):
        for version in page.get("Versions", ()):
            if version["Key"] != key or version["IsLatest"]:
                continue
            id = version["VersionId"]

            def delete(id: str = id) -> object:
                return client.delete_object(Bucket=bucket, Key=key, VersionId=id)

            until = _locked(client, bucket, key, id)
            yield Kept(path=path, what=f"noncurrent version {id}", until=until, delete=delete)


def _locked(client: Any, bucket: str, key: str, id: str) -> str:
    facts = client.head_object(Bucket=bucket, Key=key, VersionId=id)
    if facts.get("ObjectLockLegalHoldStatus") == "ON":
        return "a legal hold keeps it"
    if until := facts.get("ObjectLockRetainUntilDate"):
        return f"an object lock keeps it until {until:%Y-%m-%d}"
    return ""
