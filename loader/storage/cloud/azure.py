"""Open az://container/prefix, abfs://container/prefix, abfs://container@account.dfs.core.windows.net/prefix.

Options: see `spec.py`; also obstore's own names (with or without `azure_`) and adlfs's: account_name, account_key,
sas_token, client_id, client_secret, tenant_id, connection_string, anon, account_host. `endpoint` takes precedence over
the URL's host and account_host. `credential_provider` is a function that returns one of obstore's Azure credentials.

Credentials, first match: options, without the environment; AZURE_STORAGE_CONNECTION_STRING and AZURE_STORAGE_KEY;
obstore's own AZURE_* variables; a workload or managed identity.
"""

import os
from collections.abc import Mapping
from typing import Any

from ...errors import InvalidStore
from ..server_address import check_address
from ..spec import StoreSpec, bucket_and_prefix, store_runtime, translate_options
from ..store import Store
from .connection import connector
from .listing import azure_pages
from .store import RemoteStore

_OBSTORE = (
    *("account_name", "account_key", "sas_key", "token", "client_id", "client_secret", "tenant_id"),
    *("authority_host", "endpoint", "msi_endpoint", "object_id", "msi_resource_id", "federated_token_file"),
    *("use_azure_cli", "use_emulator", "use_fabric_endpoint", "skip_signature", "credential_type"),
    *("disable_tagging", "encryption_key"),
)
NAMES = {
    **{name: name for name in _OBSTORE},
    **{f"azure_{name}": name for name in _OBSTORE},
    "sas_token": "sas_key",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
}
_OURS = ("connection_string", "account_host", "credential_provider")
_KINDS = {  # credential option -> obstore's name for its kind, so that obstore tries no other
    "token": "bearer_token",
    "account_key": "access_key",
    "sas_key": "sas_token",
    "client_secret": "client_secret",
    "federated_token_file": "workload_identity",
    "use_azure_cli": "azure_cli",
}
_CONNECTION = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_PUBLIC = ".core.windows.net"
"""Suffix that obstore expects of an account's host."""
_CONNECTION_IGNORED = {"defaultendpointsprotocol", "queueendpoint", "tableendpoint", "fileendpoint"}


def open_azure(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Open a container of Azure Blob Storage. Raises: InvalidStore; ForkedStore."""
    place, prefix = bucket_and_prefix(url)
    container, _, host = place.partition("@")
    shown = f"az://{place}/{prefix}".rstrip("/")
    runtime = store_runtime(shown, options)
    config, provider = azure_config(shown, options, host)
    connect = connector("AzureStore", container, config, provider, runtime)
    pages_of = azure_pages(container, config, provider, runtime)
    return RemoteStore(connect, prefix, spec, shown, runtime, pages_of=pages_of, delete_keys=256)


def azure_config(
    url: str, options: Mapping[str, object], host: str = "", environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Any]:
    """Return (obstore's config, credential provider or None).

    host: the part after '@' in an abfs URL. environ: None reads this process's. Raises: InvalidStore.
    """
    config = translate_options(url, options, NAMES, _OURS)
    for name, value in _connection_string(url, options.get("connection_string")).items():
        if name != "endpoint" and config.get(name, value) != value:  # an endpoint may serve the same account
            raise InvalidStore(
                f"{url}: {name} differs from connection_string; give one of them",
                what=name,
                where=url,
                accepted="connection_string",
            )
        config.setdefault(name, value)
    if account_host := str(options.get("account_host") or ""):
        endpoint = check_address(url, "account_host", f"https://{account_host}")
        if config.setdefault("endpoint", endpoint) != endpoint:
            raise InvalidStore(
                f"{url}: endpoint is another than account_host={account_host!r}; give one of them",
                what="endpoint",
                where=url,
                accepted=account_host,
            )
        host = host or account_host
    if host:
        account = config.setdefault("account_name", host.split(".", 1)[0])
        if account != host.split(".", 1)[0]:
            raise InvalidStore(
                f"{url}: account_name={account!r} is not the account of {host!r}; give one of them",
                what="account_name",
                where=url,
                given=account,
                accepted=host,
            )
        if "." in host and not host.endswith(_PUBLIC):
            config.setdefault(
                "endpoint", check_address(url, "host", f"https://{host.replace('.dfs.', '.blob.', 1)}")
            )
    if not config.get("skip_signature", True):
        del config["skip_signature"]
    provider = options.get("credential_provider")
    if provider is not None and not callable(provider):
        raise InvalidStore(f"{url}: credential_provider is a {type(provider).__name__}; give a function")
    if provider is None and not config.get("skip_signature"):
        _add_credentials(url, config, os.environ if environ is None else environ)
    return config, provider


def _add_credentials(url: str, config: dict[str, Any], environ: Mapping[str, str]) -> None:
    kind = next((kind for name, kind in _KINDS.items() if config.get(name)), None)
    if kind is not None:
        config.setdefault("credential_type", kind)
        return
    outside = _connection_string(url, environ.get("AZURE_STORAGE_CONNECTION_STRING"))
    if "AZURE_STORAGE_ACCOUNT_NAME" not in environ and environ.get("AZURE_STORAGE_ACCOUNT"):
        outside.setdefault("account_name", environ["AZURE_STORAGE_ACCOUNT"])
    if environ.get("AZURE_STORAGE_KEY"):
        outside.setdefault("account_key", environ["AZURE_STORAGE_KEY"])
    account = outside.get("account_name")
    if account is None or config.get("account_name", account) == account:  # not another account's
        config.update({**outside, **config})


def _connection_string(url: str, text: object) -> dict[str, str]:
    if text is None:
        return {}
    config: dict[str, str] = {}
    suffix = ""
    for part in str(text).strip().strip(";").split(";"):
        name, equals, value = part.partition("=")
        known = name.strip().lower()
        if equals and known == "endpointsuffix":
            suffix = value
        elif equals and known in _CONNECTION:
            config[_CONNECTION[known]] = check_address(url, name, value) if known == "blobendpoint" else value
        elif not equals or known not in _CONNECTION_IGNORED:
            raise InvalidStore(
                f"{url}: connection_string has a part that is not understood; accepted are AccountName=, "
                "AccountKey=, SharedAccessSignature=, BlobEndpoint= and EndpointSuffix=, separated by ';'",
                what="connection_string",
                where=url,
            )
    if suffix and "account_name" in config:
        config.setdefault("endpoint", f"https://{config['account_name']}.blob.{suffix}")
    return config
