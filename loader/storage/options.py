"""Parse the options common to all remote stores, and translate options to obstore's names.

Each provider module has one table: accepted name -> obstore's name.

- timeout_s: seconds for one request, from connecting to the last byte (30). For direct S3 reads: for the head, and for
  each piece of the body of at most 16 MiB.
- connect_timeout_s: seconds to connect (5).
- retry_deadline_s: seconds during which an operation is retried (60).
- retry_base_s (0.05), retry_cap_s (3): pauses between tries, in seconds.
- max_concurrency: requests in flight per store before the store throttles (64).
- allow_http: plain http to an endpoint (true for http:// endpoints).
- proxy_url, root_certificate (PEM).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..errors import InvalidStore
from ..keywords import did_you_mean
from .requests import Limiter, RetryBudget
from .spec import PROVIDER_PREFIXES, redact, secret_values
from .store import check_key

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
MOST = 1e9
"""Largest accepted number: 31 years, or more requests than sockets."""
_ADDRESSES = {"endpoint", "base_url", "sts_endpoint", "metadata_endpoint", "msi_endpoint", "authority_host"}
"""obstore's names of options that are server addresses; "" means none."""
_ADDRESS = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]\\]+)(?::(\d{1,5}))?(?:/[^\s?#]*)?")
RETRY_OPTIONS = ("retry_deadline_s", "retry_base_s", "retry_cap_s", "max_concurrency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Transport settings of a remote store."""

    timeout_s: float
    """Seconds for one request."""
    connect_timeout_s: float
    """Seconds to connect."""
    budget: RetryBudget
    """Deadline and pauses for retries."""
    max_concurrency: int
    """Most requests in flight."""
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the HTTP client, under obstore's names."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
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


def runtime_of(url: str, options: Mapping[str, object]) -> Runtime:
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
    translated: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for name, value in options.items():
        if name in RUNTIME_OPTIONS or name in also:
            continue
        if name not in names:
            raise InvalidStore(_unknown(url, name, sorted({*names, *also, *RUNTIME_OPTIONS})))
        if value is None:
            continue
        target = names[name]
        if target in _ADDRESSES:
            if value == "":
                continue
            value = check_address(url, f"option {name}", value)
        if target in translated and translated[target] != value:
            raise InvalidStore(
                f"{url}: {spellings[target]!r} and {name!r} mean the same and differ; give one of them"
            )
        translated[target], spellings[target] = value, name
    return translated


def check_address(url: str, what: str, address: object) -> str:
    """Return a server's address, checked because the client panics on an invalid one. what: the setting's name.

    Raises: InvalidStore.
    """
    text = str(address)
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match.group(1) or 0) > 65_535:
        raise InvalidStore(
            f"{url}: {what}={redact(text)!r} is no address of a server; write http://host:port or https://host, "
            "without a user"
        )
    return text


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Return ('bucket', 'some/prefix') of `s3://bucket/some/prefix/`. Raises: InvalidStore."""
    bucket, _, prefix = url.split("://", 1)[1].partition("/")
    if not bucket:
        raise InvalidStore(f"{url!r} names no bucket; write {url.split('://', 1)[0]}://bucket/prefix")
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
        raise InvalidStore(f"{url}: option {name}={value!r} is no number of 0 to {MOST:,.0f}")
    return number
