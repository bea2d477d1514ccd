"""Check the settings of an Azure container through azure-storage-blob."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from loader.dataset.log.marker import PROBES
from loader.errors import MissingDependency
from loader.storage.cloud.azure import azure_config
from loader.storage.spec import bucket_and_prefix

from ...places import azure_endpoint
from .finding import Finding, fail, note, ok, warn

BLOBS = 10_000
"""Most blobs searched for archived ones."""


def azure_container(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about a container's settings. Costs four requests, and one per 5,000 blobs up to 10,000.

    Writes and deletes a blob, which shows versioning. Raises: InvalidStore; MissingDependency.
    """
    try:
        from azure.core.exceptions import AzureError, HttpResponseError
        from azure.storage.blob import BlobServiceClient
    except ImportError:
        raise MissingDependency(
            "azure-storage-blob is not installed, so the container's own settings were not asked for: "
            "pip install 'penstock-data[azure]'"
        ) from None
    place, prefix = bucket_and_prefix(url)
    container, _, host = place.partition("@")
    config, provider = azure_config(url, options, host)
    if provider is not None:
        yield note("settings", "not asked: only obstore can use the credentials of a credential_provider")
        return
    if not (endpoint := azure_endpoint(url, options)):
        yield note("settings", "not asked: neither the URL nor the options name the account")
        return
    try:
        # One retry and short waits: a person waits for the report.
        service = BlobServiceClient(
            endpoint, credential=azure_credential(config), retry_total=1, connection_timeout=5
        )
    except (ImportError, ValueError) as error:
        yield note("settings", f"not asked: {error}")
        return
    base = ""
    if prefix:
        base = f"{prefix}/"
    with service:
        for check, question in QUESTIONS:
            try:
                yield from question(service, container, base)
            # One refused question must not hide the answers to others.
            except HttpResponseError as error:
                what = "not permitted to ask"
                if error.status_code not in (401, 403):
                    what = f"the server answered {error.status_code}"
                yield note(check, what)
            except AzureError as error:
                yield note(check, f"not asked: {type(error).__name__}")
    yield note(
        "lifecycle",
        "rules are the account's, which this cannot see",
        "look at `az storage account management-policy show`",
    )


def azure_credential(config: Mapping[str, Any]) -> Any:
    """Return the first credential in the options, in obstore's order, or the environment's.

    Raises: ImportError; ValueError if azure-identity does not support the options.
    """
    if config.get("skip_signature"):
        return None
    if config.get("token"):
        raise ValueError("only obstore can use a bearer token of the options")
    if config.get("account_key"):
        return {"account_name": config.get("account_name", ""), "account_key": config["account_key"]}
    if config.get("sas_key"):
        return config["sas_key"]
    # A package of its own, which an account key or a SAS does not need.
    from azure import identity

    where = {"authority": config["authority_host"]} if config.get("authority_host") else {}
    tenant = config.get("tenant_id")
    client = config.get("client_id")
    if config.get("client_secret"):
        return identity.ClientSecretCredential(tenant or "", client or "", config["client_secret"], **where)
    if file := config.get("federated_token_file"):
        return identity.WorkloadIdentityCredential(
            tenant_id=tenant, client_id=client, token_file_path=file, **where
        )
    if config.get("use_azure_cli"):
        return identity.AzureCliCredential(tenant_id=tenant or "")
    return identity.DefaultAzureCredential(managed_identity_client_id=client, **where)


def _locks(service: Any, container: str, _: str) -> Iterator[Finding]:
    properties = service.get_container_client(container).get_container_properties()
    if properties.has_legal_hold or properties.has_immutability_policy:
        why = "a legal hold" if properties.has_legal_hold else "an immutability policy"
        do = "use a container without one: neither a collector nor a takedown can delete here"
        yield fail("object lock", f"the container has {why}", do)
    else:
        yield ok("object lock", "no legal hold, no immutability policy")
    scope = getattr(properties, "encryption_scope", None)
    if scope and scope.default_encryption_scope not in (None, "$account-encryption-key"):
        yield note("encryption", f"objects are encrypted in the scope {scope.default_encryption_scope}")


def _deletes(service: Any, container: str, _: str) -> Iterator[Finding]:
    kept = service.get_service_properties().get("delete_retention_policy")
    if kept is not None and kept.enabled:
        do = "end it or shorten it: what a collector or a takedown deletes stays until then"
        yield warn("versioning", f"soft delete keeps deleted blobs for {kept.days} days", do)
    else:
        yield ok("versioning", "no soft delete of blobs")


def _versions(service: Any, container: str, base: str) -> Iterator[Finding]:
    """Check versioning. If it is on, a write returns `x-ms-version-id`."""
    from azure.core.exceptions import AzureError, HttpResponseError

    blob = service.get_blob_client(container, f"{base}{PROBES}{secrets.token_hex(8)}/versioned")
    try:
        version = blob.upload_blob(b"", overwrite=True).get("version_id")
    except HttpResponseError as error:
        what = f"whether blobs are versioned is not known: the server answered {error.status_code} to a write"
        do = "look at `az storage account blob-service-properties show --query isVersioningEnabled`"
        yield note("versioning", what, do)
        return
    with suppress(AzureError):  # a locked container has its own finding
        blob.delete_blob()
    if version:
        do = (
            "switch it off, or add a rule of lifecycle management that deletes previous versions: what a collector "
            "or a takedown deletes stays as one until then, and is paid for"
        )
        yield warn("versioning", "blob versioning is on: deleted and overwritten blobs are kept", do)
    else:
        yield ok("versioning", "what is written now has no versions")


def _blobs(service: Any, container: str, base: str) -> Iterator[Finding]:
    looked = 0
    archived = list[str]()
    unfinished = list[str]()
    listed = service.get_container_client(container).list_blobs(base or None, include=["uncommittedblobs"])
    for blob in islice(listed, BLOBS):
        looked += 1
        if blob.blob_tier == "Archive":
            archived.append(blob.name)
        if blob.etag is None or (blob.size == 0 and blob.creation_time is None):
            unfinished.append(blob.name)
    if archived:
        do = (
            "rehydrate them, then read: `az storage blob set-tier --tier Hot --container-name "
            f"{container} --name {archived[0]}`; it takes hours"
        )
        yield fail(
            "tiers", f"{len(archived):,} of {looked:,} blobs lie in the archive tier ({archived[0]} ...)", do
        )
    else:
        yield ok("tiers", f"none of {looked:,} listed blobs is in the archive tier")
    if unfinished:
        what = f"{len(unfinished):,} blobs were begun and never committed ({unfinished[0]} ...)"
        yield warn("uploads", what, "Azure forgets them after a week")


QUESTIONS: Sequence[tuple[str, Callable[[Any, str, str], Iterator[Finding]]]] = (
    ("object lock", _locks),
    ("versioning", _deletes),
    ("versioning", _versions),
    ("tiers", _blobs),
)
"""(check, question). A question receives the service, the container and the blob prefix."""
