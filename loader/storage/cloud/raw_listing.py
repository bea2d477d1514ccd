"""Send listing requests directly, for buckets whose keys obstore cannot parse.

obstore fails on a page of 1,000 keys, and on all later pages, if one key is not a path (`a//b`, `a/../b`, a control
character). These requests return every key after that. obstore signs requests to S3, requests to Google carry a token,
and requests to Azure are signed here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, unquote_plus, urlencode, urlsplit

from ...errors import InvalidStore
from ..options import Runtime
from .connection import client_errors, connector
from .credentials import google_token

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

PAGE_BYTES = 64 * 2**20
"""Most bytes of a page; Azure's 5,000 keys take 5 MB."""
_SIGNED_FOR = timedelta(minutes=15)
_GOOGLE = "https://storage.googleapis.com"
_VERSION = "2021-12-02"
"""Version of Azure's API: the first that marks encoded names."""
_OTHERWISE = (
    "rename these keys; or list them through fsspec, which opens the URL with the option "
    '{"fsspec": {...options of its file system...}}'
)


class ListingPage(NamedTuple):
    objects: list[dict[str, Any]]
    """Metadata per object under obstore's names: path, size, e_tag, last_modified."""
    token: str
    """Token of the next page; "" after the last page."""


PageOf = Callable[[str, str, str], ListingPage]
"""(prefix, start_after, token) -> a page; paths are relative to the bucket. token: "" for the first page.

Raises: OSError, with obstore's text (`errors.translate`); InvalidStore.
"""


def s3_pages(bucket: str, config: Mapping[str, Any], provider: Any, runtime: Runtime) -> PageOf:
    """Return the page function for an S3 bucket. config, provider: as for `connector`."""
    anonymous = bool(config.get("skip_signature"))
    keys = {"access_key_id": "none", "secret_access_key": "none"} if anonymous else {}
    plain = {name: value for name, value in config.items() if name != "skip_signature"} | keys

    def signed(config: Mapping[str, Any]) -> str:
        import obstore

        client: Any = connector("S3Store", bucket, config, None if anonymous else provider, runtime)(0)
        try:
            return str(obstore.sign(client, "GET", "x", _SIGNED_FOR))
        except client_errors() as error:
            raise InvalidStore(
                f"s3://{bucket} has keys that are no '/'-separated paths, and no request that would list them can be "
                f"signed ({type(error).__name__}): {_OTHERWISE}"
            ) from None

    @cache
    def origin() -> str:
        return signed(plain).partition("?")[0].removesuffix("/x")

    def page(prefix: str, start_after: str, token: str) -> ListingPage:
        query = _list_query(prefix, start_after, token)
        if config.get("request_payer"):
            query["x-amz-request-payer"] = "requester"
        address = f"{origin()}?{urlencode(query, quote_via=quote)}"
        if not anonymous:
            # obstore appends "/x" to the URL: S3 ignores parameters whose names begin with "x-"
            address = signed({**plain, "endpoint": f"{address}&x-id=", "virtual_hosted_style_request": True})
        return _s3_page(_fetched(address, {}, runtime))

    return page


def google_pages(bucket: str, config: Mapping[str, Any], provider: Any, runtime: Runtime) -> PageOf:
    """Return the page function for a Google bucket. config, provider: as for `connector`."""

    def page(prefix: str, start_after: str, token: str) -> ListingPage:
        origin = str(config.get("base_url") or _GOOGLE).rstrip("/")
        address = f"{origin}/{bucket}?{urlencode(_list_query(prefix, start_after, token), quote_via=quote)}"
        bearer = "" if config.get("skip_signature") else _google_token(bucket, config, provider)
        return _s3_page(_fetched(address, {"Authorization": f"Bearer {bearer}"} if bearer else {}, runtime))

    return page


def azure_pages(container: str, config: Mapping[str, Any], provider: Any, runtime: Runtime) -> PageOf:
    """Return the page function for an Azure container. It ignores `start_after`.

    config, provider: as for `connector`.
    """

    def page(prefix: str, start_after: str, token: str) -> ListingPage:
        from email.utils import formatdate  # 5 ms, saved at startup

        account = str(config.get("account_name") or "")
        origin = str(config.get("endpoint") or f"https://{account}.blob.core.windows.net").rstrip("/")
        query = {"comp": "list", "restype": "container", "prefix": prefix}
        if token:
            query["marker"] = token
        address = f"{origin}/{container}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        credentials = {**config, **_provided(provider)}
        sas = str(credentials.get("sas_key") or "").lstrip("?")
        if credentials.get("access_key") or credentials.get("account_key"):
            key = str(credentials.get("access_key") or credentials["account_key"])
            headers["Authorization"] = azure_signature(account, key, address, query, headers)
        elif credentials.get("token"):
            headers["Authorization"] = f"Bearer {credentials['token']}"
        elif not sas and not config.get("skip_signature"):
            raise InvalidStore(
                f"az://{container} has keys that are no '/'-separated paths, which are listed with an account key, a "
                f"SAS token or a bearer token only: {_OTHERWISE}"
            )
        asked = f"{address}?{urlencode(query, quote_via=quote)}" + (f"&{sas}" if sas else "")
        return _azure_page(_fetched(asked, headers, runtime))

    return page


def azure_signature(
    account: str, key: str, address: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> str:
    """Return the Authorization header of a GET for an account key (Azure's "Shared Key").

    key: base64. address: URL without the query. headers: all headers that begin with "x-ms-".
    """
    signed_headers = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    resource = f"/{account}{urlsplit(address).path}" + "".join(
        f"\n{name}:{query[name]}" for name in sorted(query)
    )
    text = "GET" + "\n" * 12 + signed_headers + resource
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return f"SharedKey {account}:{base64.b64encode(digest).decode()}"


def _list_query(prefix: str, start_after: str, token: str) -> dict[str, str]:
    query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
    if token:
        query["continuation-token"] = token
    elif start_after:
        query["start-after"] = start_after
    return query


def _provided(provider: Any) -> Mapping[str, Any]:
    if provider is None:
        return {}
    import asyncio
    import inspect

    async def awaited(provided: Any) -> Any:
        return await provided

    provided = provider()
    return dict(asyncio.run(awaited(provided)) if inspect.isawaitable(provided) else provided)


def _google_token(bucket: str, config: Mapping[str, Any], provider: Any) -> str:
    if token := config.get("bearer_token") or _provided(provider).get("token"):
        return str(token)
    try:
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        raise InvalidStore(
            f"gs://{bucket} has keys that are no '/'-separated paths, and listing them with these credentials needs "
            "google-auth: pip install 'penstock-data[gcs]'; or rename these keys"
        ) from None
    try:
        return google_token(config)
    except (GoogleAuthError, ValueError, KeyError, TypeError, OSError) as error:
        raise InvalidStore(
            f"gs://{bucket} has keys that are no '/'-separated paths, and google-auth finds no credentials that list "
            f"them ({type(error).__name__}): {_OTHERWISE}"
        ) from None


def _fetched(address: str, headers: Mapping[str, str], runtime: Runtime) -> bytes:
    from http.client import HTTPException
    from urllib import request
    from urllib.error import HTTPError, URLError

    context = ssl.create_default_context()
    if certificate := runtime.client.get("root_certificate"):
        context.load_verify_locations(
            cadata=certificate.decode() if isinstance(certificate, bytes) else certificate
        )
    handlers: list[request.BaseHandler] = [request.HTTPSHandler(context=context)]
    if proxy := runtime.client.get("proxy_url"):
        handlers.append(request.ProxyHandler({"http": str(proxy), "https": str(proxy)}))
    asked = request.Request(address, headers={"User-Agent": "penstock", **headers})
    try:
        with request.build_opener(*handlers).open(asked, timeout=runtime.timeout_s) as answer:
            body: bytes = answer.read(PAGE_BYTES + 1)
    except HTTPError as error:
        text = error.read(2**14).decode("utf-8", "replace")
        raise OSError(f"status code: {error.code} {text}") from None
    except URLError as error:
        raise OSError(f"HTTP error: {type(error.reason).__name__}") from None
    except (OSError, HTTPException) as error:
        raise OSError(f"HTTP error: {type(error).__name__}") from None
    if len(body) > PAGE_BYTES:
        raise InvalidStore(f"a page of a listing has more than {PAGE_BYTES:,} bytes; is this a bucket?")
    return body


def _parsed(body: bytes) -> Element:
    from xml.etree.ElementTree import ParseError, fromstring

    try:
        if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
            raise ParseError("it declares entities")
        return fromstring(body)
    except ParseError as error:
        raise OSError(f"the store's listing is no XML: {error}") from None


def _text(element: Element, name: str) -> str:
    child = element.find(f"{{*}}{name}")
    return (child.text or "") if child is not None else ""


def _s3_page(body: bytes) -> ListingPage:
    root = _parsed(body)
    encoded = _text(root, "EncodingType") == "url"
    objects = [
        {
            "path": unquote_plus(_text(one, "Key")) if encoded else _text(one, "Key"),
            "size": int(_text(one, "Size") or 0),
            "e_tag": _text(one, "ETag"),
            "last_modified": datetime.fromisoformat(_text(one, "LastModified")),
        }
        for one in root.iterfind("{*}Contents")
    ]
    return ListingPage(objects, _text(root, "NextContinuationToken"))


def _azure_page(body: bytes) -> ListingPage:
    from email.utils import parsedate_to_datetime

    root, objects = _parsed(body), list[dict[str, Any]]()
    for blob in root.iterfind("{*}Blobs/{*}Blob"):
        name, properties = blob.find("{*}Name"), blob.find("{*}Properties")
        if name is None or properties is None:
            continue
        path = name.text or ""
        when = _text(properties, "Last-Modified")
        objects.append(
            {
                "path": unquote(path) if name.get("Encoded") == "true" else path,
                "size": int(_text(properties, "Content-Length") or 0),
                "e_tag": _text(properties, "Etag"),
                "last_modified": parsedate_to_datetime(when) if when else datetime.fromtimestamp(0, UTC),
            }
        )
    return ListingPage(objects, _text(root, "NextMarker"))
