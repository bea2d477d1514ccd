"""Store specs: URL and options without secrets, to show and pickle.

Credentials never travel: a worker finds its own in the environment, a profile or an instance role.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from urllib.parse import unquote, urlsplit

from ..errors import InvalidStore
from .store import Store

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
PLAIN_OPTIONS = frozenset(
    {
        *("web_identity_token_file", "federated_token_file", "application_credentials"),
        *("credential_provider", "credential_type"),
    }
)  # files and references, not secrets themselves
PROVIDER_PREFIXES = ("aws_", "azure_", "google_")
"""Prefixes of option names that do not change their meaning."""

_USERINFO = re.compile(r"(?<=://)[^/@:\s\[]*:(?![0-9]{1,5}/)[^\s\"'<>]{0,256}@")
"""A password may hold @ and /; a colon with a port and a path is none."""
_SIGNED = re.compile(
    r"(?i)\b(sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|"
    r"x-goog-credential|awsaccesskeyid|access_token|token|(?:api|secret|access)?[_-]?key|password|passwd|pwd|secret)=[^&\s\"']+"
)

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
        from . import open_spec

        return open_spec(self)


def spec_of(url: str, options: Mapping[str, object]) -> StoreSpec:
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
    if isinstance(value, str) and _USERINFO.search(value):
        return True
    return is_secret(name) and not _is_plain(value)


def secret_values(options: Mapping[str, object]) -> tuple[str, ...]:
    texts: list[str] = []
    for name, value in options.items():
        if holds_secret(name, value):
            texts.extend(_texts(value))
        elif isinstance(value, Mapping):
            texts.extend(secret_values(value))
    return tuple(sorted((text for text in texts if len(text) >= 4), key=len, reverse=True))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without the given secrets, passwords in URLs and signatures in queries."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return _SIGNED.sub(lambda match: f"{match.group(1)}=***", _USERINFO.sub("***@", text))


def reopen(spec: StoreSpec) -> Store:
    return spec.open()


class Opened:
    """Base class of all backends: provides a URL to show, and pickling as a spec."""

    spec: StoreSpec
    """The spec from which another process opens the store."""
    url: str
    """URL of the store, without secrets: messages and manifests may show it."""

    def __init__(self, spec: StoreSpec, url: str) -> None:
        self.spec, self.url = spec, url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return reopen, (self.spec,)


def _refuse_secrets(url: str) -> None:
    for part in url.split("::"):
        try:
            parts = urlsplit(part)
            password, query = parts.password, parts.query
        except ValueError as error:
            raise InvalidStore(f"{redact(url)!r} is not a URL: {error}") from None
        if password is not None:
            raise InvalidStore(
                f"{redact(url)!r} carries a password; give it as an option or in the environment instead"
            )
        if query and parts.scheme not in ("file", "local", ""):
            raise InvalidStore(
                f"{redact(url.split('?', 1)[0])!r} has a query (?...), and a store is a bucket and a folder: signed "
                "URLs name one object and expire; open the folder with credentials instead"
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
