"""Open an fsspec file system, determine its guarantees, and map its errors to `loader.errors`."""

import errno
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..errors import (
    AlreadyExists,
    Forbidden,
    InvalidStore,
    MissingDependency,
    ObjectNotFound,
    StoreError,
    Throttled,
    Transient,
)
from ..redaction import redact
from .cloud.errors import NO_BUCKET, NO_BUCKET_CODES, advice, other_region, region_advice

# Package -> first version whose `pipe_file(mode="create")` is one conditional request.
ATOMIC = {"s3fs": "2024.10", "gcsfs": "2025.2", "adlfs": "2024.12"}

# Client libraries whose errors are not OSErrors: considered only if already imported.
_LIBRARIES = {
    "botocore.exceptions": ("ClientError", "BotoCoreError"),
    "aiohttp": ("ClientError",),
    "gcsfs.retry": ("HttpError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
}
_TOKENS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "updated", "created")
# Classes in botocore, google-auth and azure-core for missing or expired credentials.
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoAuthTokenError"),
    *("TokenRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError", "ProfileNotFound"),
    *("DefaultCredentialsError", "RefreshError", "ClientAuthenticationError", "CredentialUnavailableError"),
}
# gcsfs's only messages for a missing bucket: no objects to list, or none accepted.
_OBJECTS = re.compile(r"(?:https?://.*/storage/v1/)?b/[^/]+/o(?:\?.*)?")
_SLOW = {429, 503}
_AGAIN = {408, 500, 502, 504}
_SLOW_ERRNO = {errno.EBUSY}  # s3fs: SlowDown, ServiceUnavailable
_REGION = ("fsspec.client_kwargs.region_name", "AWS_DEFAULT_REGION")
_ELSEWHERE = getattr(errno, "EREMCHG", None)  # s3fs: PermanentRedirect
_AGAIN_ERRNO = {errno.EIO, errno.EREMOTEIO, errno.EAGAIN, errno.ETIMEDOUT, errno.EPIPE}


def open_filesystem(url: str, own: Mapping[str, object], secrets: Sequence[str]) -> tuple[Any, str]:
    """Return (file system, path in it). Listing caches are off. Raises: InvalidStore; MissingDependency."""
    import fsspec.core

    plain = {"skip_instance_cache": True, "use_listings_cache": False, **own}
    try:
        fs, path = fsspec.core.url_to_fs(url, **plain)
    except ImportError as error:
        raise MissingDependency(f"{redact(url, secrets)}: {redact(str(error), secrets)}") from None
    except (ValueError, TypeError, OSError) as error:
        raise InvalidStore(
            f"{redact(url, secrets)}: fsspec does not open it: {redact(str(error), secrets)}",
            what="URL",
            where=redact(url, secrets),
        ) from None
    _refuse_old(fs, url)
    return fs, str(path)


def atomic_create(fs: Any) -> Callable[[str, bytes], object] | None:
    """Return an atomic `create(path, data)` that fails if the path exists, or None."""
    if type(fs).__module__.split(".")[0] not in ATOMIC:
        return None
    return lambda path, data: fs.pipe_file(path, data, mode="create")


def strips(fs: Any, path: str) -> Callable[[str], str] | None:
    """Return a function to the path that the file system uses (adlfs stops at '?'); None if `path` always differs."""
    strip: Callable[[str], str] = fs._strip_protocol
    return strip if strip(path) == path else None


def change_token(info: Mapping[str, Any]) -> str:
    """Return the best change token in `info`, combined with the size."""
    token = next((info[name] for name in _TOKENS if info.get(name) is not None), "")
    if isinstance(token, datetime):  # some file systems return a date in one call and seconds in another
        token = token.timestamp()
    return f"{token}:{info.get('size')}"


def modified_us(info: Mapping[str, Any]) -> int | None:
    """Return the last write, microseconds since 1970; None if unknown."""
    written: Any = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    try:
        when = datetime.fromisoformat(written) if isinstance(written, str) else written
        seconds = when.timestamp() if isinstance(when, datetime) else float(when)
    except (TypeError, ValueError):
        return None
    return int(seconds * 1_000_000)


_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")


def filesystem_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that file systems raise, excluding programming errors."""
    errors: list[type[Exception]] = [OSError, ValueError, RuntimeError, EOFError]
    for module, names in _LIBRARIES.items():
        if module in sys.modules:
            errors.extend(getattr(sys.modules[module], name) for name in names)
    return tuple(errors)


def translate(error: Exception, what: str, lacking: Sequence[str], secrets: Sequence[str]) -> StoreError:
    """Return the leaf of `StoreError` for an fsspec error during `what`. lacking: as for `cloud.errors.advice`."""
    brief = " ".join(redact(str(error), secrets).split())[:300] or type(error).__name__
    why = f"cannot {what}: {brief}"
    status = _status(error)
    number = getattr(error, "errno", None)
    if lacks_bucket(error):
        return InvalidStore(f"{why}; there is no such bucket: {NO_BUCKET}")
    answers = list(_answers(error))
    other = next(
        (region for answer in answers if (region := other_region(answer.get("Message", ""))) is not None),
        None,
    )
    if other is not None or number == _ELSEWHERE:
        return InvalidStore(f"{why}; {region_advice(other or '', *_REGION)}")
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectNotFound(f"{why}; there is no such object")
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{why}; choose another key")
    if isinstance(error, PermissionError) or status in (401, 403) or _is_refused(error, answers):
        return Forbidden(f"{why}; {advice(lacking)}")
    if isinstance(error, NotImplementedError) or number == errno.EROFS:
        return InvalidStore(f"{why}; this file system cannot do that: read from it, and write elsewhere")
    if status in _SLOW or number in _SLOW_ERRNO:
        return Throttled(why)
    if status in _AGAIN or number in _AGAIN_ERRNO or isinstance(error, (ConnectionError, TimeoutError)):
        return Transient(why)
    if status == 0 and type(error).__module__.split(".")[0] in ("aiohttp", "botocore"):
        return Transient(why)  # no response at all
    return StoreError(why)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _answers(error: Exception) -> Iterator[Mapping[str, Any]]:
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            yield response.get("Error", {})


def _is_refused(error: Exception, answers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the store rejected the credentials or there are none. Text from a key is ignored."""
    if any(one.get("Code") == "401" for one in answers):  # s3fs turns it into EIO
        return True
    if type(error) is OSError and str(error).startswith("Forbidden: "):  # gcsfs, for any 403
        return True
    return any(type(cause).__name__ in _NO_CREDENTIALS for cause in _causes(error))


def lacks_bucket(error: BaseException) -> bool:
    """Return whether the error is a missing bucket, reported as a missing file."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        code = response.get("Error", {}).get("Code") if isinstance(response, Mapping) else None
        if code in NO_BUCKET_CODES or getattr(cause, "error_code", None) in NO_BUCKET_CODES:
            return True
    return isinstance(error, FileNotFoundError) and _OBJECTS.fullmatch(str(error)) is not None


def look_for_bucket(fs: Any, path: str) -> Callable[[], object] | None:
    """Return a call that looks up a path's bucket (see `lacks_bucket`); None except for adlfs."""
    if type(fs).__module__.split(".")[0] != "adlfs":
        return None
    bucket = path.lstrip("/").partition("/")[0]
    return lambda: fs.info(bucket)


def _status(error: Exception) -> int:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    else:
        status = getattr(error, "status", None) or getattr(error, "status_code", None)
        status = status or getattr(error, "code", None) or 0
    try:
        return int(status)
    except (TypeError, ValueError):
        return 0


def _refuse_old(fs: Any, url: str) -> None:
    package = type(fs).__module__.split(".")[0]
    needed = ATOMIC.get(package)
    if needed is None:
        return
    version = str(getattr(sys.modules[package], "__version__", "0"))
    if _numbers(version) < _numbers(needed):
        raise MissingDependency(
            f"{redact(url)}: {package} {version} is too old, it cannot create atomically: "
            f"pip install '{package}>={needed}'"
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2] if part.isdigit()]
