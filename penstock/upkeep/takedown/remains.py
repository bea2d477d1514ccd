"""Purge and check remains of deleted objects: in mirrors, in node caches, and versions that stores keep."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from loader import Root
from loader.cache.cached_store import INDEX, VERIFIED
from loader.cache.pages import HEADER_BYTES, MARKER, OBJECT_DIGITS, former_page_name, object_prefix
from loader.dataset.search.embedding_code_files import derived_files
from loader.errors import InvalidRuntime, PenstockError
from loader.storage import Store
from loader.storage.cloud.azure import azure_config
from loader.storage.disk.unlisted_files import is_unfinished, list_with_unfinished
from loader.storage.mirror import primary_store
from loader.storage.spec import bucket_and_prefix

from ...denied.record import Place, TakedownRecord
from ...places import azure_endpoint
from ..doctor.azure_container import azure_credential
from .segment_edits import deleted_codes, deleted_sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """One remnant of a deleted object."""

    path: str
    """Object path."""
    what: str
    """Kind."""
    hindrance: str
    """Why it cannot be deleted here; "" if it can."""
    delete: Callable[[], object] | None = None
    """Deletes it, without a hindrance; None if penstock never can."""


class Unseen(PenstockError):
    """Raised, with the reason, if a store's remains of deleted objects cannot be listed."""


SEEN = ["snapshots", "versions", "deleted", "deletedwithversions", "uncommittedblobs"]


def azure_remains(url: str, paths: Sequence[str]) -> Iterator[Remnant]:
    """Yield what an Azure container keeps of deleted objects at these paths.

    Costs a request per path, and one for the account. Raises: Unseen; InvalidStore.
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
    under = ""
    if prefix:
        under = f"{prefix}/"
    if not (endpoint := azure_endpoint(url, {})):
        raise Unseen("neither the URL nor the environment names the account")
    try:
        with BlobServiceClient(endpoint, credential=azure_credential(config)) as service:
            if service.get_account_information()["is_hns_enabled"]:
                raise Unseen(
                    "an account with a hierarchical namespace does not list what it has deleted",
                    what="account",
                    given="a hierarchical namespace",
                )
            blobs = service.get_container_client(container)
            for path in paths:
                yield from _blob_remains(blobs, under + path, path)
    except (AzureError, ImportError, ValueError) as error:
        raise Unseen(
            f"they cannot be listed: {type(error).__name__}", what="listing", given=type(error).__name__
        ) from None


def _blob_remains(blobs: Any, name: str, path: str) -> Iterator[Remnant]:
    for blob in blobs.list_blobs(name_starts_with=name, include=SEEN):
        # The listing finds longer names too.
        if blob.name != name:
            continue
        if blob.deleted:
            days = blob.remaining_retention_days
            yield Remnant(
                path=path, what="a deleted blob", hindrance=f"soft delete keeps it for {days} more days"
            )
        elif blob.snapshot:
            yield Remnant(
                path=path, what=f"snapshot {blob.snapshot}", hindrance="delete it with Azure's own tools"
            )
        elif blob.has_versions_only or (blob.version_id and not blob.is_current_version):
            what = f"noncurrent version {blob.version_id or ''}".rstrip()
            yield Remnant(path=path, what=what, hindrance="delete it with Azure's own tools")
        # Listed, but not there: only blocks of an upload.
        elif not blobs.get_blob_client(name).exists():
            hindrance = "Azure forgets them a week after the last of them"
            yield Remnant(path=path, what="blocks that were never committed", hindrance=hindrance)


logger = logging.getLogger(__name__)

RUN = "penstock takedown run --apply"
SIGNS_OF_LIFE = ("heartbeats/", "leases/")
"""Prefixes that are rewritten all the time and hold no samples."""
_AZURE = ("az://", "abfs://", "abfss://", "azure://")


def noncurrent(
    store: Store, paths: Sequence[str], client: Any = None, *, stated: bool = False, mirror: str = ""
) -> Iterator[Place]:
    """Yield a failed check for each version and upload that a store keeps of deleted paths.

    If a listed store keeps none, yield one clean check. A local folder keeps no versions: yield a failed check for each
    unfinished file there, whatever its path, or nothing.

    Costs a request per path, one per version, and one per 1,000 uploads; a walk for a local folder.

    client: boto3 client for S3; None makes one. stated: the caller states that an unlistable store keeps nothing.
    mirror: URL of the mirror that `store` is, or "" for the primary.
    """
    if not paths:
        return
    # The URL decides: a store with mirrors counts as local if one of them is.
    if urlsplit(store.url).scheme in ("", "file", "memory"):
        yield from _unfinished_uploads(primary_store(store), mirror)
        return
    what = "noncurrent versions and unfinished uploads"
    place: Place = {"check": "noncurrent", "what": what, "url": mirror or store.url}
    command = RUN
    if mirror:
        command = f"{RUN} --mirror {mirror}"
    n_remnants = 0
    try:
        for remnant in _bucket_remains(store.url, paths, client):
            n_remnants += 1
            why = remnant.hindrance or f"{command} deletes it"
            yield {**place, "what": remnant.what, "path": remnant.path, "clean": False, "why": why}
    except Unseen as unseen:
        if stated:
            evidence = f"stated by the author of this proof, not listed ({unseen}): the store keeps none"
            yield {**place, "clean": True, "evidence": evidence}
        else:
            advice = (
                f"if its operator confirms that it keeps none, pass --keeps-nothing {mirror or store.url}"
            )
            yield {**place, "clean": False, "why": f"{unseen}; {advice}"}
        return
    if not n_remnants:
        yield {**place, "clean": True, "evidence": f"none of {len(paths)} paths has any"}


def _unfinished_uploads(store: Store, mirror: str) -> Iterator[Place]:
    """Yield a failed check for each unfinished file of a local root, which may have deleted bytes."""
    for info in list_with_unfinished(store, ""):
        if not is_unfinished(info.key) or info.key.startswith(SIGNS_OF_LIFE):
            continue
        if not info.key.startswith("data/"):
            why = "penstock gc sweep --apply deletes it when its writer has long been silent"
        elif mirror:
            why = "its writer is at work, or was killed: then delete the file"
        else:
            why = "penstock gc sweep --apply deletes it when its transaction is over"
        place: Place = {"check": "noncurrent", "what": "a file that was not finished", "path": info.key}
        yield {**place, "url": mirror or store.url, "clean": False, "why": why}


def delete_noncurrent(store: Store, paths: Sequence[str], client: Any = None) -> int:
    """Delete what an S3 bucket keeps of these paths, unless locked; return the number of deletions.

    Deletes nothing without boto3 or the permission to list, as the proof then states.
    """
    if not store.url.startswith("s3://") or not paths:
        return 0
    try:
        return _delete(client, store.url, paths)
    except Unseen as why:
        logger.warning("noncurrent versions in %s were not deleted: %s", store.url, why)
        return 0


def _bucket_remains(url: str, paths: Sequence[str], client: Any) -> Iterator[Remnant]:
    if url.startswith("s3://"):
        yield from _s3_remains(client, url, paths)
    elif url.startswith(_AZURE):
        yield from azure_remains(url, paths)
    elif url.startswith("gs://"):
        raise Unseen("Google's object versions, soft deletes and unfinished uploads are not checked")
    else:
        raise Unseen("whether a store of this kind keeps deleted objects is not known")


def _delete(client: Any, url: str, paths: Sequence[str]) -> int:
    """Delete the remnants that nothing hinders; return their number. Raises: Unseen."""
    free = [remnant for remnant in _s3_remains(client, url, paths) if not remnant.hindrance]
    deletions = [remnant.delete for remnant in free if remnant.delete is not None]
    # Not above: `_s3_remains` has the message for an environment without boto3.
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    try:
        for delete in deletions:
            delete()
    except (BotoCoreError, ClientError) as error:
        raise Unseen(type(error).__name__) from None
    return len(deletions)


def _s3_remains(client: Any, url: str, paths: Sequence[str]) -> Iterator[Remnant]:
    try:
        import boto3  # noqa: F401 - s3fs brings only botocore
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise Unseen("boto3 lists them, and is not there: pip install 'penstock-data[s3]'") from None
    try:
        yield from _list_remains(client or _client(), url, paths)
    except (BotoCoreError, ClientError) as error:
        raise Unseen(f"they cannot be listed: {type(error).__name__}") from None


def _client() -> Any:
    import boto3

    return boto3.client("s3")


def _list_remains(client: Any, url: str, paths: Sequence[str]) -> Iterator[Remnant]:
    """Yield noncurrent versions and unfinished uploads of a bucket at these paths of a root."""
    bucket, prefix = bucket_and_prefix(url)
    under = ""
    if prefix:
        under = f"{prefix}/"
    for path in paths:
        yield from _versions(client, bucket, under + path, path)
    names = set(paths)
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=under):
        for upload in page.get("Uploads", ()):
            path = upload["Key"].removeprefix(under)
            if path not in names:
                continue
            abort = partial(
                client.abort_multipart_upload,
                Bucket=bucket,
                Key=upload["Key"],
                UploadId=upload["UploadId"],
            )
            yield Remnant(path=path, what="an upload that was not ended", hindrance="", delete=abort)


def _versions(client: Any, bucket: str, key: str, path: str) -> Iterator[Remnant]:
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=key):
        for version in page.get("Versions", ()):
            # The listing finds longer keys too; the latest version is the object itself.
            if version["Key"] != key or version["IsLatest"]:
                continue
            id = version["VersionId"]
            delete = partial(
                client.delete_object,
                Bucket=bucket,
                Key=key,
                VersionId=id,
            )
            lock = _lock_reason(client, bucket, key, id)
            yield Remnant(path=path, what=f"noncurrent version {id}", hindrance=lock, delete=delete)


def _lock_reason(client: Any, bucket: str, key: str, id: str) -> str:
    """Return why a version may not be deleted; "" if it may."""
    facts = client.head_object(Bucket=bucket, Key=key, VersionId=id)
    if facts.get("ObjectLockLegalHoldStatus") == "ON":
        return "a legal hold keeps it"
    if until := facts.get("ObjectLockRetainUntilDate"):
        return f"an object lock keeps it until {until:%Y-%m-%d}"
    return ""


PAGE_SIZES = tuple(2**power for power in range(12, 27))
"""Page sizes to search for pages of format 1 with, in bytes, besides those found in the folder."""


def purge_cache(folder: str, record: TakedownRecord, root: Root) -> int:
    """Delete a takedown's shard pages, and codes of their samples or with their ranges; return their number.

    Raises: InvalidRuntime if there is no node cache.
    """
    pages = _pages(folder, record) + _code_files(folder, record, root)
    for path in pages:
        os.unlink(path)
    return len(pages)


def _code_files(folder: str, record: TakedownRecord, root: Root) -> list[str]:
    return derived_files(folder, deleted_sources(record), deleted_codes(root, record))


def cache_places(record: TakedownRecord, folders: Sequence[str], root: Root) -> Iterator[Place]:
    """Yield a check result per folder."""
    for folder in folders:
        place = {"check": "cache", "what": "a node cache", "path": folder}
        if pages := _pages(folder, record) + _code_files(folder, record, root):
            yield {
                **place,
                "clean": False,
                "why": f"{len(pages)} pages are there: penstock takedown run --cache",
            }
        else:
            yield {**place, "clean": True, "evidence": "no page of the shards"}


def _shards(record: TakedownRecord) -> set[tuple[str, int]]:
    """Return (SHA-256, bytes) of the shards whose pages go."""
    shards: set[tuple[str, int]] = set()
    for place in record.having("absent"):
        if "nbytes" in place:
            shards.add((place["sha256"], place["nbytes"]))
    for place in record.having("registered"):
        if "pages" in place:
            sha256, nbytes = place["pages"]
            shards.add((sha256, nbytes))
    return shards


def page_prefixes(record: TakedownRecord) -> set[str]:
    """Return the prefixes of the names of the pages that a takedown deletes."""
    prefixes: set[str] = set()
    for sha256, _ in _shards(record):
        prefixes.add(object_prefix(sha256))
        prefixes.add(object_prefix(f"{sha256}{VERIFIED}"))
    for place in record.having("absent"):
        if "footer_sha256" in place:
            prefixes.add(object_prefix(f"{place['footer_sha256']}{INDEX}"))
    return prefixes


def _pages(folder: str, record: TakedownRecord) -> list[str]:
    if not os.path.isfile(os.path.join(folder, MARKER)):
        raise InvalidRuntime(
            f"{folder} is not a node cache: it has no {MARKER}; pass the path given to NodeCache",
            what=MARKER,
            where=folder,
            accepted="a node cache",
        )
    there: dict[str, str] = {}
    sizes = set(PAGE_SIZES)
    for at, _, names in os.walk(os.path.join(folder, "pages")):
        for name in names:
            there[name] = os.path.join(at, name)
            # Names of pages of format 1 depend on the page size.
            sizes.add(os.path.getsize(there[name]) - HEADER_BYTES)
    shards = _shards(record)
    prefixes = page_prefixes(record)
    pages = {path for name, path in there.items() if name[:OBJECT_DIGITS] in prefixes}
    former_names = (
        former_page_name(content, size, number)
        for sha256, nbytes in sorted(shards)
        for content in (sha256, f"{sha256}{VERIFIED}")
        for size in sorted(sizes)
        if size > 0 and there
        for number in range(-(-nbytes // size))
    )
    pages |= {there[name] for name in former_names if name in there}
    return sorted(pages)
