"""Find remains of deleted blobs on Azure: soft-deleted blobs, versions, snapshots, uncommitted blocks.

Settings would not show them: what was deleted under soft delete or versioning stays after both are off.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loader.storage.cloud.azure import azure_config
from loader.storage.options import bucket_and_prefix

from ..doctor.azure_container import azure_credential, azure_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes of a deleted object that a store keeps."""

    path: str
    """Path of the object."""
    what: str
    """The kind of bytes, in words."""
    until: str
    """Why it cannot be deleted here, or ""."""
    delete: Callable[[], object] | None = None
    """Deletes it if `until` is ""; None if penstock cannot."""


class Unseen(Exception):
    """A store's remains of deleted objects cannot be listed; the text has the reason."""


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
    """Yield all but the current blob."""
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
