"""Store specs: URL and options without secrets, to show, pickle and open; the options of all remote stores.

Credentials never travel: a worker finds its own in the environment, a profile or an instance role.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from importlib import import_module
from os import PathLike, fspath
from types import FunctionType
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from ..errors import InvalidStore, MissingDependency
from ..keywords import did_you_mean
from ..redaction import USERINFO, redact
from .requests import Limiter, RetryBudget
from .store import Store, check_key

# scheme -> "module:function"; the function takes (url, options, spec). Clients are imported on first use.
BACKENDS = {
    "file": "disk.store:open_local",
    "local": "disk.store:open_local",
    "memory": "key_value:open_memory",
    "s3": "cloud.s3:open_s3",
    "s3a": "cloud.s3:open_s3",
    "gs": "cloud.gcs:open_gcs",
    "gcs": "cloud.gcs:open_gcs",
    "az": "cloud.azure:open_azure",
    "abfs": "cloud.azure:open_azure",
    "abfss": "cloud.azure:open_azure",
}
FSSPEC = "fsspec_store:open_fsspec"  # every other scheme, and every URL opened with options {"fsspec": {...}}

# The list of secret option names, without the providers' prefixes. Names that contain one of the fragments
# are also secret, so that unknown options of an fsspec file system are dropped, not written to disk.
SECRET_OPTIONS = frozenset(
    {
        *("key", "secret", "token", "anon_token", "password", "passwd", "passphrase", "username", "api_key"),
        *("access_key_id", "secret_access_key", "session_token", "sse_customer_key_base64"),
        *("account_key", "sas_key", "sas_token", "connection_string", "client_secret", "encryption_key"),
        *("credential", "credentials", "service_account_key", "bearer_token", "proxy_url"),
        *("cookies", "headers", "auth", "pkey"),
    }
)
SECRET_FRAGMENTS = ("secret", "password", "passwd", "token", "credential", "private", "sas_", "access_key")
# Files and references, not secrets themselves.
PLAIN_OPTIONS = frozenset(
    {
        *("web_identity_token_file", "federated_token_file", "application_credentials"),
        *("credential_provider", "credential_type"),
    }
)
PROVIDER_PREFIXES = ("aws_", "azure_", "google_")
"""Prefixes of option names that do not change their meaning."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_WEB_USER = re.compile(r"(?i)\bhttps?://[^/?#@\s]+@")
"""User information of a web address: often a token. `abfss://container@account` names no user."""

# Parts of a shared access signature or connection string that a store may quote on their own.
_PIECES = re.compile(r"(?i)(?:\bsig|\bAccountKey|\bSharedAccessSignature)=([^;&\s]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """Describes a store so that this or another process can open it."""

    url: str
    """URL without secrets."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the store, without secrets."""
    dropped: tuple[str, ...] = ()
    """Names of the secret options that this spec leaves out."""

    def open(self) -> Store:
        """Open the store. Raises: InvalidStore; MissingDependency."""
        return _open(self.url, self.options, self)


Opener = Callable[[str, Mapping[str, object], StoreSpec], Store]


def open_store(url: str | PathLike[str], options: Mapping[str, object] | None = None) -> Store:
    """Open the store at a local path or a URL, without creating or contacting anything yet.

    - url: `/data/root`, `file:///data/root`, `memory://name/prefix`, `s3://bucket/prefix`, `gs://...`, `az://...`,
      `abfs://...`, an installed package's scheme, or any other fsspec URL.
    - options: see the backend's module. {"fsspec": {...}} passes the URL and those options to fsspec.

    Raises: InvalidStore for an invalid URL or option; MissingDependency; ForkedStore in a forked child of a process
    that used a native client.
    """
    text = fspath(url) if isinstance(url, PathLike) else url
    if not isinstance(text, str) or not text:
        raise InvalidStore(
            f"store URL {text!r}: give a path or a URL such as '/data/root' or 's3://bucket/prefix'",
            what="store URL",
            given=text,
        )
    settings = dict(options or {})
    return _open(text, settings, store_spec(text, settings))


def _open(url: str, options: Mapping[str, object], spec: StoreSpec) -> Store:
    scheme = url.split("://", 1)[0].lower() if "://" in url else "file"
    place = FSSPEC if "fsspec" in options else BACKENDS.get(scheme)
    opener = _ours(place) if place else _of_a_package(scheme) or _ours(FSSPEC)
    return opener(url, options, spec)


def _ours(place: str) -> Opener:
    module, function = place.split(":")
    return cast(Opener, getattr(import_module(f".{module}", __package__), function))


@cache
def _of_a_package(scheme: str) -> Opener | None:
    """Return the opener that an installed package has for a scheme, or None."""
    from importlib.metadata import entry_points  # 20 ms; the schemes above do not need it

    for entry_point in entry_points(group="penstock.stores", name=scheme):
        try:
            return cast(Opener, entry_point.load())
        except ImportError as error:
            message = f"{scheme}:// is opened by {entry_point.value}: {error}"
            raise MissingDependency(message, what=f"{scheme}://", given=entry_point.value) from error
    return None


def store_spec(url: str, options: Mapping[str, object]) -> StoreSpec:
    """Return the part of `url` and `options` to show and pickle. Raises: InvalidStore for a URL with a secret."""
    if "://" in url:
        _refuse_secrets(url)
    dropped: list[str] = []
    kept = _without_secrets(options, "", dropped)
    return StoreSpec(url=url, options=kept, dropped=tuple(sorted(dropped)))


def is_secret(name: str) -> bool:
    """Return whether the value of an option must never be shown, logged or pickled."""
    lowered = name.lower()
    for prefix in PROVIDER_PREFIXES:
        lowered = lowered.removeprefix(prefix)
    if lowered in PLAIN_OPTIONS:
        return False
    return lowered in SECRET_OPTIONS or any(part in lowered for part in SECRET_FRAGMENTS)


def holds_secret(name: str, value: object) -> bool:
    """Return whether an option is secret by its name, or because its value is a URL with a password."""
    if isinstance(value, str) and re.search(USERINFO, value):
        return True
    return is_secret(name) and not _is_plain(value)


def secret_values(options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the texts in secret options, which errors must not repeat."""
    texts: list[str] = []
    for name, value in options.items():
        if holds_secret(name, value):
            texts.extend(_texts(value))
        elif isinstance(value, Mapping):
            texts.extend(secret_values(value))
    return tuple(sorted((text for text in texts if len(text) >= 4), key=len, reverse=True))


def has_url_secret(text: str) -> bool:
    """Return whether a URL within the text carries a password, a token or a signature."""
    return any(redact(url) != url or _WEB_USER.search(url) for url in _URL.findall(text))


def reopen(spec: StoreSpec) -> Store:
    return spec.open()


class Opened:
    """Base class of all backends: provides a URL to show, and pickling as a spec."""

    spec: StoreSpec
    """The spec from which another process opens the store."""
    url: str
    """URL of the store, without secrets: messages and manifests may show it."""

    def __init__(self, spec: StoreSpec, url: str) -> None:
        self.spec = spec
        self.url = url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return reopen, (self.spec,)


def _refuse_secrets(url: str) -> None:
    for part in url.split("::"):
        try:
            urlsplit(
                url
            )  # raises ValueError for some URLs whose parts are valid: the openers parse the whole
            parts = urlsplit(part)
            password = parts.password
            query = parts.query
        except ValueError as error:
            raise InvalidStore(f"{redact(url)!r} is not a URL: {error}", what="store URL") from None
        if password is not None:
            raise InvalidStore(
                f"{redact(url)!r} carries a password; give it as an option or in the environment instead"
            )
        if query and parts.scheme not in ("file", "local", ""):
            raise InvalidStore(
                f"{redact(url.split('?', 1)[0])!r} has a query (?...), and a store is a bucket and a folder: signed "
                "URLs name one object and expire; open the folder with credentials instead",
                what="store URL",
                given="a query",
            )


def _without_secrets(options: Mapping[str, object], path: str, dropped: list[str]) -> dict[str, object]:
    kept: dict[str, object] = {}
    for name, value in options.items():
        where = f"{path}{name}"
        if isinstance(value, Mapping) and not is_secret(name):
            kept[name] = _without_secrets(value, f"{where}.", dropped)
        elif holds_secret(name, value) or not _may_travel(value):
            if value is not None:
                dropped.append(where)
        else:
            kept[name] = value
    return kept


def _is_plain(value: object) -> bool:
    return isinstance(value, str) and (value in ("", "anon", "google_default") or value.endswith(".json"))


def _may_travel(value: object) -> bool:
    if isinstance(value, FunctionType):
        return "<" not in value.__qualname__
    if isinstance(value, (list, tuple)):
        return all(_may_travel(item) for item in value)
    return value is None or isinstance(value, (str, bytes, int, float, bool))


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value, *(unquote(secret) for secret in _PIECES.findall(value)), *_PIECES.findall(value)]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return []


_NUMBERS = {
    "timeout_s": 30.0,
    "connect_timeout_s": 5.0,
    "retry_deadline_s": 60.0,
    "retry_base_s": 0.05,
    "retry_cap_s": 3.0,
    "max_concurrency": 64.0,
}
_CLIENT = ("allow_http", "proxy_url", "root_certificate")
RUNTIME_OPTIONS = (*_NUMBERS, *_CLIENT)
"""Options that every remote store accepts. A provider's module has one table more: accepted name -> obstore's name.

- timeout_s: seconds for one request, from connecting to the last byte (30). For direct S3 reads: for the head, and for
  each piece of the body of at most 16 MiB.
- connect_timeout_s: seconds to connect (5).
- retry_deadline_s: seconds during which an operation is retried (60).
- retry_base_s (0.05), retry_cap_s (3): pauses between tries, in seconds.
- max_concurrency: requests in flight per store before the store throttles (64).
- allow_http: plain http to an endpoint (true for http:// endpoints).
- proxy_url, root_certificate (PEM).
"""
MOST = 1e9
"""Largest accepted number: 31 years, or more requests than sockets."""
_ADDRESSES = {"endpoint", "base_url", "sts_endpoint", "metadata_endpoint", "msi_endpoint", "authority_host"}
"""obstore's names of options that are server addresses; "" means none."""
RETRY_OPTIONS = ("retry_deadline_s", "retry_base_s", "retry_cap_s", "max_concurrency")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Runtime:
    """Transport settings of a remote store. Their text shows none of them: some are secret."""

    timeout_s: float
    """Seconds for one request."""
    connect_timeout_s: float
    """Seconds to connect."""
    budget: RetryBudget
    """Deadline and pauses for retries."""
    max_concurrency: int
    """Most requests in flight."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Options of the HTTP client, under obstore's names."""
    secrets: tuple[str, ...] = ()
    """Secret texts to keep out of messages."""
    part_retries: int = 10
    """Number of times that obstore retries a failed part of an upload."""

    def limiter(self) -> Limiter:
        return Limiter(self.max_concurrency)

    def client_options(self, endpoint: str | None) -> dict[str, Any]:
        options = {
            "timeout": timedelta(seconds=self.timeout_s),
            "connect_timeout": timedelta(seconds=self.connect_timeout_s),
            **self.client,
        }
        if endpoint is not None and endpoint.startswith("http://"):
            options.setdefault("allow_http", True)
        return options

    def retry_config(self, max_retries: int) -> dict[str, Any]:
        return {"max_retries": max_retries, "retry_timeout": timedelta(seconds=self.budget.deadline_s)}


def store_runtime(url: str, options: Mapping[str, object]) -> Runtime:
    """Return the options common to all stores. Raises: InvalidStore for an invalid number."""
    numbers = {name: _number(url, name, options.get(name, default)) for name, default in _NUMBERS.items()}
    return Runtime(
        timeout_s=numbers["timeout_s"],
        connect_timeout_s=numbers["connect_timeout_s"],
        budget=RetryBudget(
            deadline_s=numbers["retry_deadline_s"],
            base_s=numbers["retry_base_s"],
            cap_s=numbers["retry_cap_s"],
        ),
        max_concurrency=int(numbers["max_concurrency"]),
        client={name: options[name] for name in _CLIENT if options.get(name) is not None},
        secrets=secret_values(options),
    )


def translate_options(
    url: str, options: Mapping[str, object], names: Mapping[str, str], also: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return `options` under obstore's names. Options that are None are dropped.

    names: accepted name -> obstore's name. also: accepted names that the caller handles.

    Raises: InvalidStore for an unknown name, contradictory names, or an invalid address.
    """
    from .server_address import check_address  # not needed for a local store

    translated: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for name, value in options.items():
        if name in RUNTIME_OPTIONS or name in also:
            continue
        if name not in names:
            raise InvalidStore(
                _unknown(url, name, sorted({*names, *also, *RUNTIME_OPTIONS})),
                what="option",
                where=url,
                given=name,
            )
        if value is None:
            continue
        target = names[name]
        if target in _ADDRESSES:
            if value == "":
                continue
            value = check_address(url, f"option {name}", value)
        if target in translated and translated[target] != value:
            raise InvalidStore(
                f"{url}: {spellings[target]!r} and {name!r} mean the same and differ; give one of them",
                what=name,
                where=url,
                given=spellings[target],
                accepted="one of them",
            )
        translated[target] = value
        spellings[target] = name
    return translated


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Return ('bucket', 'some/prefix') of `s3://bucket/some/prefix/`. Raises: InvalidStore."""
    bucket, _, prefix = url.split("://", 1)[1].partition("/")
    if not bucket:
        raise InvalidStore(
            f"{url!r} names no bucket; write {url.split('://', 1)[0]}://bucket/prefix",
            what="bucket",
            where=url,
            given="none",
        )
    prefix = prefix.strip("/")
    return bucket, check_key(prefix) if prefix else ""


def _unknown(url: str, name: str, accepted: list[str]) -> str:
    shown = [known for known in accepted if not known.startswith(PROVIDER_PREFIXES)]
    return (
        f"{url}: unknown option {name!r}{did_you_mean(name, accepted) or ';'} accepted are "
        f"{', '.join(shown)} (and the client's names with its prefix, such as aws_region); options of "
        'an fsspec file system go under one key: {"fsspec": {...}}'
    )


def _number(url: str, name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= MOST:
        raise InvalidStore(
            f"{url}: option {name}={value!r} is not a number of 0 to {MOST:,.0f}",
            what=name,
            where=url,
            given=value,
            accepted=[0, MOST],
        )
    return number
