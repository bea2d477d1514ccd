"""Errors of obstore in the words of `loader.errors`: the one mapping for S3, GCS and Azure.

obstore names a few conditions by class and the rest by text: "... non-2xx status code: 503 ...: <xml>". Only the
status and the store's own code and message are kept of that text; it may hold signed URLs.
"""

import re
from collections.abc import Sequence

from ...errors import Forbidden, InvalidStore, ObjectNotFound, StoreError, Throttled, Transient
from ..spec import redact

_STATUS = re.compile(r"status code: (\d{3})")
_FIELD = r"<{0}>([^<]*)</{0}>"
# (compiled when they are first used: a start meets no such error)
_METADATA = r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google|/latest/(api/token|meta-data)"
_NO_CREDENTIALS = r"(?i)no credentials|credential.*(not found|missing)|could not .*credential"
_NO_TOKEN_YET = r"credential provider.*(TransportError|ConnectionError|ConnectTimeout|ReadTimeout)"
_SLOW = {429, 503}
_AGAIN = {408, 500, 502, 504}
_SLOW_CODES = {
    *("SlowDown", "ServiceUnavailable", "TooManyRequests", "ServerBusy", "RequestLimitExceeded"),
    "ThrottlingException",
}
# NoSuchUpload: the answer to a completed multipart upload was lost, and some servers then deny having had it.
_AGAIN_CODES = {"RequestTimeout", "InternalError", "OperationTimedOut", "NoSuchUpload"}
_ARCHIVED_CODES = {"InvalidObjectState", "BlobArchived"}
NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
NO_BUCKET = "create the bucket, or correct the URL or the endpoint"
_OTHER_REGION = r"the region (?:'[^']*' )?is wrong(?:; expecting '([a-z0-9-]+)')?"
_CREDENTIAL_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
_DENIED_CODES = {"AccessDenied", "AllAccessDisabled"}
_KEPT = re.compile(
    r"DeleteObjects request failed for key (?P<key>.*): (?P<why>.*) \(code: (?P<code>\w+)\)", re.DOTALL
)
"""Text of obstore about one key among many that S3 did not delete, in an answer whose status is 200."""


def translate(error: Exception, what: str, lacking: Sequence[str], secrets: Sequence[str]) -> StoreError:
    """Return the leaf of `StoreError` for an error of obstore met while doing `what` (verb and address).

    lacking: as for `advice`.
    """
    text = str(error).split("\n\nDebug source", 1)[0]
    found = _STATUS.search(text)
    status = int(found.group(1)) if found else 0
    kept = _KEPT.search(text)
    code = kept["code"] if kept else _xml(text, "Code")
    brief = (
        f"the store answered {code} {kept['why']} for {kept['key']}" if kept else _brief(text, status, code)
    )
    why = f"cannot {what}: {redact(brief, secrets)}"
    name = type(error).__name__
    if code == "NoSuchKey" and isinstance(error, FileNotFoundError):  # each log is read up to this answer
        return ObjectNotFound(f"{why}; there is no such object")
    if re.search(_NO_TOKEN_YET, text):
        return Transient(f"{why}; what gives out credentials did not answer")
    if re.search(_METADATA, text) or re.search(_NO_CREDENTIALS, text):
        return Forbidden(f"cannot {what}: no credentials were found; {advice(lacking)}")
    if code in _ARCHIVED_CODES:
        return StoreError(f"{why}; it lies in an archive tier: restore the object, then run this again")
    if code == "RequestTimeTooSkewed":
        return Forbidden(
            f"{why}; set this machine's clock (the store takes signatures of the last minutes only)"
        )
    if (other := other_region(text)) is not None:
        return InvalidStore(f"{why}; {region_advice(other)}")
    if (
        name in ("PermissionDeniedError", "UnauthenticatedError")
        or status in (401, 403)
        or code in _CREDENTIAL_CODES | _DENIED_CODES
    ):
        return Forbidden(f"{why}; {advice(lacking)}")
    if code in NO_BUCKET_CODES:
        return InvalidStore(f"{why}; {NO_BUCKET}")
    if isinstance(error, FileNotFoundError) and code not in _AGAIN_CODES:
        return ObjectNotFound(f"{why}; there is no such object")
    if "configured region" in text or "PermanentRedirect" in text:
        return InvalidStore(f"{why}; {region_advice('')}")
    if status in _SLOW or code in _SLOW_CODES:
        return Throttled(why)
    if status in _AGAIN or code in _AGAIN_CODES or (status == 0 and "HTTP error" in text):
        return Transient(why)
    if name == "InvalidPathError":
        return InvalidStore(f"{why}; the bucket holds a key that is no '/'-separated path: move it elsewhere")
    if status == 400 and not code:  # the answer to a HEAD has no body
        ask = "the region and the credentials" if " s3://" in what else "the credentials"
        return StoreError(f"{why}, and no reason: check {ask} (keys that expired or are of another kind)")
    return StoreError(why)


def is_conflict(error: Exception) -> bool:
    """Return whether a create was refused because of another object, or (409) of another request under way."""
    return type(error).__name__ in ("AlreadyExistsError", "PreconditionError")


def is_past_end(error: Exception) -> bool:
    """Return whether a range begins behind the last byte: HTTP 416, or a whole object, which obstore notices."""
    found = _STATUS.search(str(error))
    return (found is not None and found.group(1) == "416") or "Wanted range starting at" in str(error)


def _brief(text: str, status: int, code: str) -> str:
    if status:
        message = _xml(text, "Message")
        return " ".join(f"the store answered {status} {code} {message}".split())
    text = text.split(" - ", 1)[-1] if text.startswith("Generic") else text
    return " ".join(text.split())[:300]


def _xml(text: str, name: str) -> str:
    found = re.search(_FIELD.format(name), text)
    return found.group(1) if found else ""


def other_region(text: str) -> str | None:
    """Return the region that S3 expected, or ""; None unless `text` says that a request was signed for another."""
    if "&" in text:
        from html import unescape  # 2 ms, which a first answer would wait for

        text = unescape(text)
    found = re.search(_OTHER_REGION, text)
    return None if found is None else found.group(1) or ""


def region_advice(region: str, option: str = "region", variable: str = "AWS_REGION") -> str:
    """Return advice on a bucket of another region.

    region: the bucket's, or "". option, variable: names of the setting.
    """
    if region:
        return f"the bucket lies in {region}: give the option {option}={region} or {variable}={region}"
    return f"the bucket lies in another region: give the option {option} or {variable}"


def advice(lacking: Sequence[str]) -> str:
    """Return advice on credentials.

    lacking: the secret options that a pickle left behind, where none came instead.
    """
    if lacking:
        return (
            f"the secret options {', '.join(lacking)} were given where the store was first opened and are "
            "never pickled: give workers credentials by environment, profile or instance role"
        )
    return "check the credentials (options, environment, profile, instance role) and their rights there"
