"""Bytes of deleted objects that stores keep: noncurrent versions, soft-deleted objects, uploads that never ended.

- S3 is asked through boto3, with the credentials that it finds, or a client that is given.
- Azure is asked through azure-storage-blob (`kept_by_azure`).
- Google Cloud Storage and stores that fsspec opens are not asked: a proof states so, or that its author states that
  they keep nothing.
- A folder of this machine keeps what killed writers have not finished.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from loader.storage import Store
from loader.storage.disk.unlisted_files import is_unfinished, list_with_unfinished
from loader.storage.mirror.store import primary_of
from loader.storage.options import bucket_and_prefix

from ...denied.record import Place
from .azure import Kept, Unseen

logger = logging.getLogger(__name__)

RUN = "penstock takedown run --apply"
SIGNS_OF_LIFE = ("heartbeats/", "leases/")
"""Written all the time, without samples."""
_AZURE = ("az://", "abfs://", "abfss://", "azure://")


def noncurrent(
    store: Store, paths: Sequence[str], client: Any = None, *, told: bool = False, mirror: str = ""
) -> Iterator[Place]:
    """Yield a place for each version and upload of these paths that is kept, or one for all where none is.

    A folder of this machine has a place for each file that was not finished. Costs a request per path, one per version,
    and one per 1,000 uploads; a walk through a folder.

    client: boto3's, of an S3 bucket.
    told: whether the caller states that the store keeps nothing; counts where it cannot be looked at.
    mirror: the URL by which it was given, where it is one.
    """
    # By its URL: a store with mirrors is local too, where one of these is.
    if not paths:
        return
    if urlsplit(store.url).scheme in ("", "file", "memory"):
        yield from _unfinished(primary_of(store), mirror)
        return
    what = "noncurrent versions and unfinished uploads"
    place: Place = {"check": "noncurrent", "what": what, "url": mirror or store.url}
    run = f"{RUN} --mirror {mirror}" if mirror else RUN
    found = 0
    try:
        for one in _kept(store.url, paths, client):
            found += 1
            why = one.until or f"{run} deletes it"
            yield {**place, "what": one.what, "path": one.path, "clean": False, "why": why}
    except Unseen as unseen:
        if told:
            said = f"told by whoever proved this, not looked at ({unseen}): the store keeps none"
            yield {**place, "clean": True, "evidence": said}
        else:
            do = f"where its operator knows that it keeps none, say --keeps-nothing {mirror or store.url}"
            yield {**place, "clean": False, "why": f"{unseen}; {do}"}
        return
    if not found:
        yield {**place, "clean": True, "evidence": f"none of {len(paths)} paths has any"}


def _unfinished(store: Store, mirror: str) -> Iterator[Place]:
    """Yield a place for each unfinished file of a folder, whatever is in it; none for a store in memory."""
    by_hand = "its writer is at work, or was killed: then delete the file"
    in_data, beside = (
        f"penstock gc sweep --apply deletes it when {when}"
        for when in ("its transaction is over", "its writer has long been silent")
    )
    for info in list_with_unfinished(store, ""):
        if is_unfinished(info.key) and not info.key.startswith(SIGNS_OF_LIFE):
            why = beside if not info.key.startswith("data/") else by_hand if mirror else in_data
            place: Place = {"check": "noncurrent", "what": "a file that was not finished", "path": info.key}
            yield {**place, "url": mirror or store.url, "clean": False, "why": why}


def delete_noncurrent(store: Store, paths: Sequence[str], client: Any = None) -> int:
    """Delete what an S3 bucket keeps of these paths, but for what a lock keeps. Returns how many.

    Deletes none without boto3, or rights to list them; the proof states it.
    """
    if not store.url.startswith("s3://") or not paths:
        return 0
    try:
        return _delete(client, store.url, paths)
    except Unseen as why:
        logger.warning("noncurrent versions in %s were not deleted: %s", store.url, why)
        return 0


def _kept(url: str, paths: Sequence[str], client: Any) -> Iterator[Kept]:
    """Yield the remains that a store keeps. Raises: Unseen."""
    if url.startswith("s3://"):
        yield from _kept_by_s3(client, url, paths)
    elif url.startswith(_AZURE):
        from .azure import kept_by_azure

        yield from kept_by_azure(url, paths)
    elif url.startswith("gs://"):
        raise Unseen("object versions, soft delete and unfinished uploads of Google's are not looked at")
    else:
        raise Unseen("whether a store of this kind keeps deleted objects is not known")


def _delete(client: Any, url: str, paths: Sequence[str]) -> int:
    """Delete them. Raises: Unseen, before anything is deleted without boto3 or the right to list."""
    free = [one.delete for one in _kept_by_s3(client, url, paths) if one.delete and not one.until]
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    try:
        for delete in free:
            delete()
    except (BotoCoreError, ClientError) as error:
        raise Unseen(type(error).__name__) from None
    return len(free)


def _kept_by_s3(client: Any, url: str, paths: Sequence[str]) -> Iterator[Kept]:
    """Yield the remains in an S3 bucket. Raises: Unseen without boto3, or where it may not list them."""
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
    wanted = set(paths)
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=under):
        for upload in page.get("Uploads", ()):
            if (path := upload["Key"].removeprefix(under)) in wanted:

                def abort(key: str = upload["Key"], id: str = upload["UploadId"]) -> object:
                    return client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=id)

                yield Kept(path=path, what="an upload that was not ended", until="", delete=abort)


def _versions(client: Any, bucket: str, key: str, path: str) -> Iterator[Kept]:
    """Yield every version but the current one; a delete marker has no bytes."""
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=key):
        for one in page.get("Versions", ()):
            if one["Key"] != key or one["IsLatest"]:
                continue
            id = one["VersionId"]

            def delete(id: str = id) -> object:
                return client.delete_object(Bucket=bucket, Key=key, VersionId=id)

            until = _locked(client, bucket, key, id)
            yield Kept(path=path, what=f"noncurrent version {id}", until=until, delete=delete)


def _locked(client: Any, bucket: str, key: str, id: str) -> str:
    said = client.head_object(Bucket=bucket, Key=key, VersionId=id)
    if said.get("ObjectLockLegalHoldStatus") == "ON":
        return "a legal hold keeps it"
    if until := said.get("ObjectLockRetainUntilDate"):
        return f"an object lock keeps it until {until:%Y-%m-%d}"
    return ""
