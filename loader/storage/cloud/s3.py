"""Open s3://bucket/prefix (and s3a://) through obstore.

Options: see `spec.py`; also obstore's own names (with or without `aws_`) and s3fs's: key, secret, token, anon,
profile, endpoint_url, requester_pays, client_kwargs={"endpoint_url", "region_name", "aws_..."}. `credential_provider`
is a function that returns obstore's S3Credential; it pickles by its import path. `direct_reads` (true): read ranges by
direct requests (`range_requests.py`).

Credentials: `credentials.py`; explicit keys are not mixed with the environment's token. Endpoint and region: options,
AWS_* variables, the profile, then us-east-1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any

from ...errors import Forbidden, InvalidStore, ObjectNotFound, StoreError
from ..server_address import check_address
from ..spec import (
    RUNTIME_OPTIONS,
    Runtime,
    StoreSpec,
    bucket_and_prefix,
    store_runtime,
    translate_options,
)
from ..store import Store, check_key
from .connection import connector
from .credentials import credential_provider, profile_settings
from .listing import PageOf, is_md5, metadata_etag, s3_pages
from .range_requests import Direct
from .store import RemoteStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client


class S3PutStore(RemoteStore):
    """One S3 bucket and prefix, which can take another store's object without hashing it a second time.

    A signature covers the payload's SHA-256 (0.6 s of processor per GiB). The ETag of an object put by one request is
    its MD5. If source and target have the same MD5, the signature need not cover the payload.
    """

    def __init__(
        self,
        connect: Callable[[int], Client],
        unsigned: Callable[[int], Client],
        prefix: str,
        spec: StoreSpec,
        url: str,
        runtime: Runtime,
        *,
        pages_of: PageOf,
        delete_keys: int,
        direct: Direct | None = None,
    ) -> None:
        """connect, unsigned: create clients that sign payloads, or do not. The rest: as for `RemoteStore`."""
        super().__init__(
            connect, prefix, spec, url, runtime, pages_of=pages_of, delete_keys=delete_keys, direct=direct
        )
        self._unsigned = unsigned
        self._twin_lock = Lock()
        self._reading_back = Lock()
        self._twin_client: Client | None = None  # signs no payloads
        self._vouches = True  # False once the store took only a signed put, or stored other bytes

    def put_same(self, key: str, data: bytes | memoryview, etag: str, *, replace: bool) -> None:
        """Put an object that another store has with `etag`, like `put` (if `replace`) or `put_if_absent`.

        If the store returns another ETag, the object is read back, and put again if it differs from `data`.
        """
        tries_unsigned = self._vouches and is_md5(etag)
        if tries_unsigned:
            is_stored = self._put_unsigned(key, data, etag, replace)
            if is_stored:
                return
        if replace:
            self.put(key, data)
        else:
            self.put_if_absent(key, data)
        if tries_unsigned:
            # Only now: rights that lack, or credentials that expired, reject a signed put, too.
            self._vouches = False

    def _put_unsigned(self, key: str, data: bytes | memoryview, etag: str, replace: bool) -> bool:
        """Return whether the store has the object afterwards; False if it must be put with a signature."""
        path = self._prefix + check_key(key)
        mode = "create"
        if replace:
            mode = "overwrite"

        def attempt(obstore: Any, _: Client) -> str | None:
            client = self._twin()  # here, so that a forked child fails before creating one

            def put() -> str:
                return metadata_etag(obstore.put(client, path, data, mode=mode, use_multipart=False))

            if replace:
                return put()
            return self._created(obstore, client, key, data, put)

        try:
            stored_etag = self._call("write", key, attempt)
        except StoreError as error:
            if type(error) not in (StoreError, Forbidden):
                raise
            # A server may reject it with any status: a signed put shows the reason.
            return False
        if stored_etag in (None, etag):
            return True
        self._vouches = False
        try:
            with self._reading_back:  # at most one object at a time is in memory twice
                is_there = self.get(key).data == data
        except ObjectNotFound:
            return False
        except Forbidden:  # write permission without read permission
            is_there = False
        if not is_there:
            self.put(key, data)
        return True

    def close(self) -> None:
        with self._twin_lock:
            self._twin_client = None
        super().close()

    def _twin(self) -> Client:
        with self._twin_lock:
            if self._twin_client is None:
                self._twin_client = self._unsigned(0)
            return self._twin_client


_OBSTORE = (
    *("access_key_id", "secret_access_key", "session_token", "region", "endpoint", "skip_signature"),
    *("virtual_hosted_style_request", "request_payer", "checksum_algorithm", "unsigned_payload"),
    *("server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "sse_customer_key_base64"),
    *("role_arn", "role_session_name", "web_identity_token_file", "sts_endpoint", "metadata_endpoint"),
    *("imdsv1_fallback", "s3_express", "disable_tagging", "disable_bulk_delete"),
    *("container_credentials_relative_uri", "container_credentials_full_uri"),
)
NAMES = {
    **{name: name for name in _OBSTORE},
    **{f"aws_{name}": name for name in _OBSTORE},
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "aws_token": "session_token",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "aws_endpoint_url": "endpoint",
    "region_name": "region",
    "requester_pays": "request_payer",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_OURS = ("profile", "client_kwargs", "credential_provider", "direct_reads")
_NOT_DIRECT = ("skip_signature", "sse_customer_key_base64", "s3_express")
"""Settings that a URL signed by obstore cannot carry, or does not need."""


def open_s3(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    """Open an S3 bucket. Raises: InvalidStore; MissingDependency if a profile needs boto3; ForkedStore."""
    bucket, prefix = bucket_and_prefix(url)
    shown = f"s3://{bucket}/{prefix}".rstrip("/")
    runtime = store_runtime(shown, options)
    config, provider = s3_config(shown, options)
    connect = connector("S3Store", bucket, config, provider, runtime)
    unsigned = connect
    if "unsigned_payload" not in config:  # if set, it applies to all puts
        unsigned = connector("S3Store", bucket, {**config, "unsigned_payload": True}, provider, runtime)
    delete_keys = 1 if config.get("disable_bulk_delete") else 1000
    return S3PutStore(
        *(connect, unsigned, prefix, spec, shown, runtime),
        pages_of=s3_pages(bucket, config, provider, runtime),
        delete_keys=delete_keys,
        direct=_direct(shown, options, config, runtime),
    )


def s3_config(
    url: str, options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Any]:
    """Return (obstore's config, credential provider or None) for options in any spelling.

    environ: None reads this process's.

    Raises: InvalidStore; MissingDependency.
    """
    environ = os.environ if environ is None else environ
    client_kwargs = options.get("client_kwargs") or {}
    if not isinstance(client_kwargs, Mapping):
        raise InvalidStore(
            f"{url}: client_kwargs is a {type(client_kwargs).__name__}; give a dict",
            what="client_kwargs",
            where=url,
            given=type(client_kwargs).__name__,
            accepted="a dict",
        )
    flat = {name: value for name, value in options.items() if name != "client_kwargs"}
    for name, value in client_kwargs.items():
        if name in RUNTIME_OPTIONS or name in _OURS:
            raise InvalidStore(
                f"{url}: {name!r} stands in client_kwargs, which are boto's and obstore's names; give it beside them",
                what="client_kwargs",
                where=url,
                given=name,
            )
        if name in flat and flat[name] != value:
            raise InvalidStore(
                f"{url}: {name!r} is given twice, in client_kwargs too; give it once",
                what=name,
                where=url,
                given="twice",
                accepted="once",
            )
        flat[name] = value
    config = translate_options(url, flat, NAMES, _OURS)
    profile = options.get("profile")
    settings = profile_settings(environ, str(profile) if profile else None)
    endpoints = {name: environ.get(name) for name in _ENDPOINTS} | {
        "endpoint_url": settings.get("endpoint_url")
    }
    for name, endpoint in endpoints.items():
        if endpoint and "endpoint" not in config:
            config["endpoint"] = check_address(url, name, endpoint)
    if "skip_signature" in config and not config["skip_signature"]:
        del config["skip_signature"]
    provider = credential_provider(url, options, config, environ)
    region = config.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    config["region"] = region or settings.get("region") or "us-east-1"
    return config, provider


def _direct(
    url: str, options: Mapping[str, object], config: Mapping[str, Any], runtime: Runtime
) -> Direct | None:
    """Return what reads by own connections need; None if obstore must read. Raises: InvalidStore for the option."""
    direct_reads = options.get("direct_reads")
    if direct_reads is not None and not isinstance(direct_reads, bool):
        raise InvalidStore(
            f"{url}: option direct_reads={direct_reads!r} is not a boolean; give true or false",
            what="direct_reads",
            where=url,
            given=direct_reads,
            accepted=[True, False],
        )
    if direct_reads is False or runtime.client.get("proxy_url"):
        return None
    if any(config.get(name) or os.environ.get(f"AWS_{name.upper()}") for name in _NOT_DIRECT):
        return None
    # (other systems also configure proxies in their settings)
    proxies = sys.platform != "linux" or any(name.lower().endswith("_proxy") for name in os.environ)
    return Direct(runtime, proxies=proxies)
