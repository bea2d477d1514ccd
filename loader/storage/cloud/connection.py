"""A remote store's client, with its retries, threads and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...errors import InvalidStore, PenstockError
from ...redaction import redact
from ..requests import Retrier, count_request
from ..spec import Runtime, StoreSpec
from ..threads import DaemonPool, check_fork, native_opened
from .errors import brief_text, translate

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

MIN_IN_FLIGHT = 16


class Connection:
    """A client that reconnects after `close`; refuses to work in a forked child."""

    def __init__(self, connect: Callable[[int], Client], url: str, spec: StoreSpec, runtime: Runtime) -> None:
        self._token = native_opened(url)
        self._url = url
        self._spec = spec
        self._runtime = runtime
        folder = url.partition("://")[2].partition("/")[2]
        self._base = f"{folder}/" if folder else ""
        self._connect = connect
        self._retrier = Retrier(runtime.budget, runtime.limiter())
        self._lock = Lock()
        self._client: Client | None = connect(0)
        self._uploader: Client | None = None
        self._pool: DaemonPool | None = None

    def call(self, verb: str, key: str, attempt: Callable[[Any, Client], T]) -> T:
        """Return `attempt(obstore, client)` under the retry budget; obstore's errors become StoreError.

        penstock's errors pass through: Transient is retried, Changed is not.
        """
        check_fork(self._token, self._url)
        client = self._client or self._reconnect()
        obstore = _native()
        errors = client_errors()

        def once() -> T:
            try:
                return attempt(obstore, client)
            except PenstockError:  # may be an OSError or ValueError too
                raise
            except errors as error:
                what = f"{verb} {self._url}/{key}"
                # `from None`: the client's own text may hold signed URLs
                path = self._base + key
                raise translate(
                    error, what, self._missing_secrets(client), self._runtime.secrets, path
                ) from None

        return self._retrier.call(once)

    def hold(self, attempt: Callable[[Any, Client], T | None]) -> tuple[T, Callable[[bool], None]] | None:
        """Return (result, done) of `attempt(obstore, client)`, tried once; None if it failed or returned None.

        The request counts towards `max_concurrency` until `done(throttled)` is called.
        """
        check_fork(self._token, self._url)
        client = self._client or self._reconnect()
        token = self._retrier.limiter.acquire()
        result: T | None = None
        try:
            with suppress(OSError):
                result = attempt(_native(), client)
        finally:
            if result is None:
                self._retrier.limiter.release(token, throttled=False)
        if result is None:
            return None
        count_request()
        return result, lambda throttled: self._retrier.limiter.release(token, throttled=throttled)

    def uploader(self) -> Client:
        """Return the client for all uploads, which retries failed parts itself."""
        check_fork(self._token, self._url)
        with self._lock:
            if self._uploader is None:
                self._uploader = self._connect(self._runtime.part_retries)
            return self._uploader

    def workers(self) -> DaemonPool:
        check_fork(self._token, self._url)
        with self._lock:
            if self._pool is None:
                size = max(MIN_IN_FLIGHT, self._runtime.max_concurrency)
                self._pool = DaemonPool(size, "penstock-store")
            return self._pool

    def close(self) -> None:
        with self._lock:
            pool = self._pool
            self._pool = None
            self._client = None
            self._uploader = None
        # Outside the lock: the pool's calls may need it.
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _missing_secrets(self, client: Client) -> Sequence[str]:
        """Return the secret options that the store's spec lost on its way here, if the client has no credentials."""
        has_its_own = self._runtime.secrets or getattr(client, "credential_provider", None)
        return () if has_its_own else self._spec.dropped

    def _reconnect(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._connect(0)
            return self._client


def connector(
    name: str, bucket: str, config: Mapping[str, Any], provider: Any, runtime: Runtime
) -> Callable[[int], Client]:
    """Return the function that creates a `Connection`'s clients. name: a class in `obstore.store`. config: its config.

    The function raises InvalidStore if obstore rejects the configuration.
    """

    def connect(max_retries: int) -> Client:
        import obstore.store

        refusals: tuple[type[Exception], ...] = (*client_errors(), TypeError)  # an option of another type
        endpoint = config.get("endpoint") or config.get("base_url")
        try:
            client = getattr(obstore.store, name)(
                bucket,
                config=config,
                client_options=runtime.client_options(endpoint),
                retry_config=runtime.retry_config(max_retries),
                credential_provider=provider,
            )
        except refusals as error:
            brief = redact(brief_text(error), runtime.secrets)
            raise InvalidStore(
                f"{bucket}: the options are refused: {brief}", what="options", where=bucket, given=brief
            ) from None
        return cast("Client", client)

    return connect


@cache
def _native() -> Any:
    import obstore

    return obstore


@cache
def client_errors() -> tuple[type[Exception], ...]:
    """Return obstore's exceptions: its own and the builtins that it raises."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError)
