"""List a bucket in key order, without trusting a provider's offset or prefix.

obstore fails on a page of 1,000 keys, and on all later pages, if one key is not a path (`a//b`, `a/../b`, a control
character). Then pages are requested directly. obstore signs requests to S3, requests to Google carry a token, and
requests to Azure are signed here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, unquote_plus, urlencode, urlsplit

from ...errors import InvalidStore, StoreError
from ..requests import count_request
from ..spec import Runtime
from ..store import ObjectInfo, Refuse, key_fault
from .connection import Connection, client_errors, connector
from .credentials import google_token
from .errors import is_unparsed

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from obstore.store import ObjectStore as Client

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
    anonymous = bool(config.get("skip_signature"))
    plain = {name: value for name, value in config.items() if name != "skip_signature"}
    if anonymous:
        # For `origin`, which cuts the signature off: obstore signs with any keys.
        plain |= {"access_key_id": "none", "secret_access_key": "none"}

    def sign_url(config: Mapping[str, Any]) -> str:
        import obstore

        own_provider = provider
        if anonymous:
            own_provider = None
        client: Any = connector("S3Store", bucket, config, own_provider, runtime)(0)
        try:
            return str(obstore.sign(client, "GET", "x", _SIGNED_FOR))
        except client_errors() as error:
            raise InvalidStore(
                f"s3://{bucket} has keys that are no '/'-separated paths, and no request that would list them can be "
                f"signed ({type(error).__name__}): {_OTHERWISE}"
            ) from None

    @cache
    def origin() -> str:
        return sign_url(plain).partition("?")[0].removesuffix("/x")

    def page(prefix: str, start_after: str, token: str) -> ListingPage:
        query = _list_query(prefix, start_after, token)
        if config.get("request_payer"):
            query["x-amz-request-payer"] = "requester"
        address = f"{origin()}?{urlencode(query, quote_via=quote)}"
        if not anonymous:
            # obstore appends "/x" to the URL: S3 ignores parameters whose names begin with "x-"
            address = sign_url(
                {**plain, "endpoint": f"{address}&x-id=", "virtual_hosted_style_request": True}
            )
        return _s3_page(_fetch(address, {}, runtime))

    return page


def google_pages(bucket: str, config: Mapping[str, Any], provider: Any, runtime: Runtime) -> PageOf:
    def page(prefix: str, start_after: str, token: str) -> ListingPage:
        origin = str(config.get("base_url") or _GOOGLE).rstrip("/")
        address = f"{origin}/{bucket}?{urlencode(_list_query(prefix, start_after, token), quote_via=quote)}"
        headers = {}
        if not config.get("skip_signature"):
            bearer = _google_token(bucket, config, provider)
            headers["Authorization"] = f"Bearer {bearer}"
        return _s3_page(_fetch(address, headers, runtime))

    return page


def azure_pages(container: str, config: Mapping[str, Any], provider: Any, runtime: Runtime) -> PageOf:
    def page(prefix: str, start_after: str, token: str) -> ListingPage:
        # This version of Azure's API cannot begin after a name: `list_objects` drops the keys up to `start_after`.
        from email.utils import formatdate  # 5 ms, saved at startup

        account = str(config.get("account_name") or "")
        origin = str(config.get("endpoint") or f"https://{account}.blob.core.windows.net").rstrip("/")
        query = {"comp": "list", "restype": "container", "prefix": prefix}
        if token:
            query["marker"] = token
        address = f"{origin}/{container}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        credentials = {**config, **_await_provider(provider)}
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
        url = f"{address}?{urlencode(query, quote_via=quote)}"
        if sas:
            url += f"&{sas}"  # a query string, encoded and signed as it is
        return _azure_page(_fetch(url, headers, runtime))

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


def _await_provider(provider: Any) -> Mapping[str, Any]:
    """Return the credentials of obstore's provider, a function that may be asynchronous; {} without one."""
    if provider is None:
        return {}
    import asyncio
    import inspect

    async def await_value(provided: Any) -> Any:
        return await provided

    provided = provider()
    if inspect.isawaitable(provided):
        provided = asyncio.run(await_value(provided))
    return dict(provided)


def _google_token(bucket: str, config: Mapping[str, Any], provider: Any) -> str:
    if token := config.get("bearer_token") or _await_provider(provider).get("token"):
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


def _fetch(address: str, headers: Mapping[str, str], runtime: Runtime) -> bytes:
    from http.client import HTTPException, IncompleteRead
    from urllib import request
    from urllib.error import HTTPError, URLError

    context = ssl.create_default_context()
    certificate = runtime.client.get("root_certificate")
    if isinstance(certificate, bytes):
        certificate = certificate.decode()
    if certificate:
        context.load_verify_locations(cadata=certificate)
    handlers: list[request.BaseHandler] = [request.HTTPSHandler(context=context)]
    if proxy := runtime.client.get("proxy_url"):
        handlers.append(request.ProxyHandler({"http": str(proxy), "https": str(proxy)}))
    get = request.Request(address, headers={"User-Agent": "penstock", **headers})
    # obstore's wording, which `errors.translate` expects. No causes, and no texts but the server's: the address may be
    # signed, and a proxy's may contain a password.
    refusal = 0
    try:
        try:
            with request.build_opener(*handlers).open(get, timeout=runtime.timeout_s) as response:
                body: bytes = response.read(PAGE_BYTES + 1)
                # http.client raises IncompleteRead by itself only if it is asked for the whole body.
                if response.length and len(body) <= PAGE_BYTES:
                    raise IncompleteRead(body, response.length)
        except HTTPError as error:
            with error:
                refusal = error.code
                body = error.read(2**14)
    except URLError as error:
        raise OSError(f"HTTP error: {type(error.reason).__name__}") from None
    except (OSError, HTTPException) as error:
        raise OSError(f"HTTP error: {type(error).__name__}") from None
    if refusal:
        text = body.decode("utf-8", "replace")
        raise OSError(f"status code: {refusal} {text}")
    if len(body) > PAGE_BYTES:
        raise InvalidStore(f"a page of a listing has more than {PAGE_BYTES:,} bytes; is this a bucket?")
    return body


def _parse_xml(body: bytes) -> Element:
    from xml.etree.ElementTree import ParseError, fromstring

    try:
        if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
            raise ParseError("it declares entities")
        return fromstring(body)
    except ParseError as error:
        raise OSError(f"the store's listing is not XML: {error}") from None


def _text(element: Element, name: str) -> str:
    child = element.find(f"{{*}}{name}")
    return (child.text or "") if child is not None else ""


def _s3_page(body: bytes) -> ListingPage:
    root = _parse_xml(body)
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

    root = _parse_xml(body)
    objects = list[dict[str, Any]]()
    for blob in root.iterfind("{*}Blobs/{*}Blob"):
        name = blob.find("{*}Name")
        properties = blob.find("{*}Properties")
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


T = TypeVar("T")

PAGE_KEYS = 1_000
_MD5 = re.compile(r'"[0-9a-f]{32}"')


def list_objects(
    connection: Connection,
    base: str,
    prefix: str,
    start_after: str,
    *,
    pages_of: PageOf,
    refuse: Refuse,
    seek: bool = False,
) -> Iterator[ObjectInfo]:
    """Yield objects below `base` whose relative key starts with `prefix` and sorts after `start_after`.

    obstore lists whole folders; the rest is filtered here. A failed page restarts the listing within the retry budget;
    rereading earlier pages belongs to the same try. No object is yielded twice.

        base: '' or ends in '/'.
        pages_of: direct listing, used if obstore cannot parse a key.
        refuse: receives each object whose key is not a valid store key.
        seek: let the server start after the last object, which some servers get wrong.

    Raises: StoreError if the bucket does not list in key order.
    """
    full = base + prefix
    previous = ""  # in this pass
    last = start_after  # over all passes
    pages = _Pages(connection, base, prefix, pages_of)

    def start_key() -> str:
        return base + last if seek and last else ""

    for page in pages.each(start_key):
        if pages.begins:
            previous = ""
        for meta in page:
            key = meta["path"][len(base) :]
            if not meta["path"].startswith(full) or not key:
                continue
            is_marker = meta["size"] == 0
            key = key.removesuffix("/") if is_marker else key  # consoles create 'sub/' for a folder
            if key <= previous:
                if is_marker:
                    continue  # 'sub/' sorts after 'sub.x', and 'sub' before it
                raise StoreError(
                    f"cannot list {prefix!r}: {key!r} came after {previous!r}, and key order is needed; "
                    "this bucket (an S3 directory bucket?) does not list in it: use a general purpose bucket",
                    what="key order",
                    where=prefix,
                    given=key,
                    accepted=f"a key after {previous!r}",
                )
            previous = key
            if key > last:
                last = key
                if fault := key_fault(key):
                    refuse(key, fault)
                else:
                    yield object_info(key, meta)


class _Pages:
    def __init__(self, connection: Connection, base: str, prefix: str, pages_of: PageOf) -> None:
        self._connection = connection
        self._prefix = prefix
        self._pages_of = pages_of
        self._full = base + prefix
        self._folder = self._full[: self._full.rfind("/")] if "/" in self._full else None
        self._pages: Iterator[Sequence[Any]] | None = None
        self._seen = ""  # last path of all pages so far, in all passes
        self._is_parsed = True  # False once obstore rejected a key: then pages are requested directly
        self.begins = True
        """True for the first page of a pass."""

    def each(self, behind: Callable[[], str]) -> Iterator[Sequence[Any]]:
        """Yield the pages. behind: returns the path after which a pass may start, "" for the beginning."""
        while (page := self._call(lambda obstore, client: self._next(obstore, client, behind()))) is not None:
            yield page
            self.begins = False
        if self._is_parsed:
            return
        self.begins = True
        start = behind()
        token = ""
        while True:
            raw = self._call(lambda *_: self._pages_of(self._full, start, token))  # noqa: B023 - called at once
            yield raw.objects
            self.begins = False
            token = raw.token
            if not token:
                return

    def _call(self, attempt: Callable[[Any, Client], T]) -> T:
        return self._connection.call("list", self._prefix, attempt)

    def _next(self, obstore: Any, client: Client, behind: str) -> Sequence[Any] | None:
        """Return obstore's next page with a new path; None after the last one, or if it rejected a key."""
        try:
            if self._pages is None:
                self._pages = obstore.list(client, self._folder, offset=behind or None, chunk_size=PAGE_KEYS)
                self.begins = True
            page: Sequence[Any] | None = next(self._pages, None)
            while page and (end := max(meta["path"] for meta in page)) <= self._seen:
                count_request()
                page = next(self._pages, None)
            self._seen = end if page else self._seen
            return page
        except client_errors() as error:
            self._pages = None  # a broken stream cannot be resumed
            if is_unparsed(error):
                self._is_parsed = False
                return None
            raise


def object_info(key: str, meta: Any) -> ObjectInfo:
    modified_us = int(meta["last_modified"].timestamp() * 1_000_000)
    return ObjectInfo(key=key, nbytes=meta["size"], etag=metadata_etag(meta), modified_us=modified_us)


def metadata_etag(meta: Any) -> str:
    return quote_etag(meta["e_tag"] or "")


def quote_etag(etag: str) -> str:
    return etag if not etag or etag.endswith('"') else f'"{etag}"'


def is_md5(etag: str) -> bool:
    """Return whether an ETag could be its object's MD5."""
    return bool(_MD5.fullmatch(etag))


def differ(first: str, other: str) -> bool:
    """Return whether two ETags prove that two objects differ: both could be MD5 and are unequal."""
    return first != other and is_md5(first) and is_md5(other)
