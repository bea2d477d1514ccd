"""Server and path of a store, and one check that a command does not write into what it reads."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loader.dataset.log.marker import BEFORE_A_ROOT, MARKER, PROBES
from loader.errors import InvalidStore, NotARoot
from loader.storage import Store, is_there
from loader.storage.mirror import primary_store
from loader.storage.spec import Opened, bucket_and_prefix


def s3_endpoint(url: str, options: Mapping[str, Any]) -> str:
    """Return the server's URL. Raises: InvalidStore; MissingDependency."""
    from loader.storage.cloud.s3 import s3_config

    config, _ = s3_config(url, options)
    return str(config.get("endpoint") or f"https://s3.{config['region']}.amazonaws.com")


def gcs_endpoint(url: str, options: Mapping[str, Any]) -> str:
    """Return the server's URL. Raises: InvalidStore."""
    from loader.storage.cloud.gcs import gcs_config

    config, _ = gcs_config(url, options)
    return str(config.get("base_url") or "https://storage.googleapis.com")


def azure_endpoint(url: str, options: Mapping[str, Any]) -> str:
    """Return the server's URL, or "" if neither URL nor options name it. Raises: InvalidStore."""
    from loader.storage.cloud.azure import azure_config

    place, _ = bucket_and_prefix(url)
    config, _ = azure_config(url, options, place.partition("@")[2])
    account = config.get("account_name")
    return str(config.get("endpoint") or (f"https://{account}.blob.core.windows.net" if account else ""))


ENDPOINTS: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "s3": s3_endpoint,
    "s3a": s3_endpoint,
    "gs": gcs_endpoint,
    "gcs": gcs_endpoint,
    "az": azure_endpoint,
    "abfs": azure_endpoint,
    "abfss": azure_endpoint,
}
"""URL scheme -> function of (URL, options), which returns the server's URL."""
_SERVER_OPTIONS = ("endpoint_url", "account_name", "account_host")
"""Options of fsspec that locate a server; penstock's options have the same names."""


def check_root_or_records(store: Store, what: str) -> None:
    """Raise NotARoot if a place is not a root, and has no record of a training: it may be misspelt.

    Earlier releases kept such records in places that are not roots. what: what the caller did not find, "runs".
    """
    if is_there(store, MARKER):
        return
    for prefix in BEFORE_A_ROOT:
        if prefix != PROBES and next(iter(store.list(prefix)), None) is not None:
            return
    message = f"{store.url} is not a root, and has no {what}: check --root"
    raise NotARoot(message, what="--root", given=store.url, accepted="a root")


def check_apart(root: Store, place: Store, why: str) -> None:
    """Raise InvalidStore if one of two stores contains the other. why: why that is refused, and what to do.

    Compares folders behind symbolic links, and buckets by server, whatever the scheme.
    """
    server, path = _location(root)
    other_server, other_path = _location(place)
    # Paths end with "/": /data/root2 does not lie in /data/root.
    is_nested = path.startswith(other_path) or other_path.startswith(path)
    if server == other_server and is_nested:
        message = f"{place.url} and {root.url}: one lies in the other. {why}"
        raise InvalidStore(message, what="locations", given=[place.url, root.url], accepted="locations apart")


def check_file_apart(root: Store, path: str | os.PathLike[str], why: str) -> None:
    """Raise InvalidStore if a local file or folder that a command writes lies in a store. why: as for `check_apart`."""
    server, folder = _location(root)
    if not server and _folder(os.fspath(path)).startswith(folder):
        message = f"{path} lies in {root.url}. {why}"
        raise InvalidStore(message, what="path", where=root.url, given=path, accepted="a path outside")


def local_folder(store: Store) -> Path | None:
    """Return the folder of a store on a local disk or mount; None for any other store."""
    server, folder = _location(store)
    if server:
        return None
    return Path(folder)


def _location(store: Store) -> tuple[str, str]:
    """Return server and path. The server of a local folder is "". A path ends with "/"."""
    own = primary_store(store)
    url = own.url
    scheme, _, rest = url.partition("://")
    if not rest or scheme in ("file", "local"):
        return "", _folder(rest or url)
    if scheme not in ENDPOINTS:
        return scheme, f"{rest.rstrip('/')}/"
    bucket, prefix = bucket_and_prefix(url)
    container = bucket.partition("@")[0]  # Azure: container@account
    below = ""
    if prefix:
        below = f"{prefix}/"
    return _server(own, scheme), f"{container}/{below}"


def _folder(path: str) -> str:
    # Two paths may be one folder by a symbolic link.
    real = str(Path(os.path.realpath(path)))
    return f"{real.rstrip('/')}/"


def _server(store: Store, scheme: str) -> str:
    """Return the URL of a store's server, from its options or, without one, from the scheme."""
    options: Mapping[str, Any] = {}
    if isinstance(store, Opened):
        options = store.spec.options
    fsspec_options = options.get("fsspec")
    if isinstance(fsspec_options, Mapping):
        # s3fs takes an endpoint as an option of its own, or in client_kwargs: if both have one, client_kwargs win.
        inner = {**fsspec_options, **(fsspec_options.get("client_kwargs") or {})}
        options = {name: inner[name] for name in _SERVER_OPTIONS if name in inner}
    return ENDPOINTS[scheme](store.url, options).rstrip("/")
