"""az://container/prefix, abfs://container/prefix, abfs://container@account.dfs.core.windows.net/prefix.

Options: those of `options.py`, obstore's own names (with or without `azure_`) and adlfs's: account_name,
account_key, sas_token, client_id, client_secret, tenant_id, connection_string, anon, account_host.
`credential_provider` is a function that returns one of obstore's Azure credentials. Without any of them
obstore reads AZURE_* variables, then asks for a workload or managed identity.
"""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidStore
from .connection import connector
from .objectstore import RemoteStore
from .options import bucket_and_prefix, runtime_of, translate_options
from .spec import StoreSpec
from .store import Store

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
_CONNECTION = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_key",
    "blobendpoint": "endpoint",
}
_CONNECTION_IGNORED = {"defaultendpointsprotocol", "queueendpoint", "tableendpoint", "fileendpoint"}


def open_azure(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Raises: InvalidStore; ForkedStore."""
    place, prefix = bucket_and_prefix(url)
    container, _, host = place.partition("@")
    shown = f"az://{place}/{prefix}".rstrip("/")
    runtime = runtime_of(shown, options)
    config, provider = azure_config(shown, options, host)
    connect = connector("AzureStore", container, config, provider, runtime)
    return RemoteStore(connect, prefix, spec, shown, runtime, delete_keys=256)


def azure_config(url: str, options: Mapping[str, object], host: str = "") -> tuple[dict[str, Any], Any]:
    """(obstore's config, credential provider or None).

    host: what stands behind '@' in an abfs URL, 'account.dfs.core.windows.net'. Raises: InvalidStore.
    """
    config = translate_options(url, options, NAMES, _OURS)
    for name, value in _connection_string(url, options.get("connection_string")).items():
        config.setdefault(name, value)
    account_host = options.get("account_host")
    if isinstance(account_host, str):
        config.setdefault("endpoint", f"https://{account_host}")
        host = host or account_host
    if host:
        account = config.setdefault("account_name", host.split(".", 1)[0])
        if account != host.split(".", 1)[0]:
            raise InvalidStore(
                f"{url}: account_name={account!r} is not the account of {host!r}; give one of them"
            )
    if not config.get("skip_signature", True):
        del config["skip_signature"]
    provider = options.get("credential_provider")
    if provider is not None and not callable(provider):
        raise InvalidStore(f"{url}: credential_provider is a {type(provider).__name__}; give a function")
    return config, provider


def _connection_string(url: str, text: object) -> dict[str, str]:
    if text is None:
        return {}
    made: dict[str, str] = {}
    suffix = ""
    for part in str(text).strip().strip(";").split(";"):
        name, equals, value = part.partition("=")
        known = name.strip().lower()
        if equals and known == "endpointsuffix":
            suffix = value
        elif equals and known in _CONNECTION:
            made[_CONNECTION[known]] = value
        elif not equals or known not in _CONNECTION_IGNORED:
            raise InvalidStore(
                f"{url}: connection_string has a part that is not understood; accepted are AccountName=, "
                "AccountKey=, SharedAccessSignature=, BlobEndpoint= and EndpointSuffix=, separated by ';'"
            )
    if suffix and "account_name" in made:
        made.setdefault("endpoint", f"https://{made['account_name']}.blob.{suffix}")
    return made
