"""Map errors of obstore to `loader.errors`, for S3, GCS and Azure.

obstore identifies a few conditions by class and the rest by text: "... non-2xx status code: 503 ...: <xml>". Only
status, code and message are used: the rest may hold signed URLs, or words of a key.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from ...errors import Forbidden, InvalidStore, ObjectNotFound, StoreError, Throttled, Transient
from ...redaction import redact

_STATUS = re.compile(r"status code: (\d{3})|Server returned error response: ")
_LEADS = ("location {} not found: ", "location {} already exists: ", "for path {}: ")
"""obstore's phrases around an object's path, which precede its message."""
_LEAD_CHARACTERS = 100
_ASKED = re.compile(r"Error performing [A-Z]+ (?P<address>https?://\S+)")
_FIELD = r"<{0}>([^<]*)</{0}>"
# (compiled at first use: startup needs none)
_METADATA = re.compile(
    r"https?://(169\.254\.169\.254|169\.254\.170\.2|metadata\.google|[^/]+/latest/(api/token|meta-data))"
)
_NO_CREDENTIALS = r"(?i)no credentials|credential.*(not found|missing)|could not .*credential"
_NO_TOKEN_YET = r"credential provider.*(TransportError|ConnectionError|ConnectTimeout|ReadTimeout)"
_SLOW = {429, 503}
_AGAIN = {408, 500, 502, 504}
_SLOW_CODES = {
    *("SlowDown", "ServiceUnavailable", "TooManyRequests", "ServerBusy", "RequestLimitExceeded"),
    "ThrottlingException",
}
# NoSuchUpload: the response to a completed multipart upload was lost, and the server has forgotten the upload.
_AGAIN_CODES = {"RequestTimeout", "InternalError", "OperationTimedOut", "NoSuchUpload"}
_ARCHIVED_CODES = {"InvalidObjectState", "BlobArchived"}
_MOVED_CODES = {"PermanentRedirect", "TemporaryRedirect"}
NO_BUCKET_CODES = {"NoSuchBucket", "ContainerNotFound"}
NO_BUCKET = "create the bucket, or correct the URL or the endpoint"
_OTHER_REGION = r"the region (?:'[^']*' )?is wrong(?:; expecting '([a-z0-9-]+)')?"
_CREDENTIAL_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"}
_DENIED_CODES = {"AccessDenied", "AllAccessDisabled"}
_KEPT = re.compile(
    r"DeleteObjects request failed for key (?P<key>.*): (?P<why>.*) \(code: (?P<code>\w+)\)", re.DOTALL
)
"""Text for one key that S3 did not delete, in a response with status 200."""


class _Answer(NamedTuple):
    address: str
    """Address of the request, which may end in the key, or ""."""
    words: str
    """obstore's own message: the whole text if no server responded."""
    status: int
    """HTTP status; 0 if there was no response, or only its body reports an error."""
    body: str
    """Body of the response; a key inside its XML is escaped."""


def brief_text(error: Exception) -> str:
    """Return obstore's message of an error, without Rust's debug text after it."""
    return str(error).split("\n\nDebug source", 1)[0]


def _answer(error: Exception, path: str) -> _Answer:
    """Return the response that an error of obstore reports. path: of the object in the bucket."""
    text = brief_text(error)
    for lead in _LEADS:
        before, lead_stands, rest = text.partition(lead.format(path))
        if lead_stands and len(before) < _LEAD_CHARACTERS:
            text = rest
            break
    address = ""
    if asked := _ASKED.search(text):
        address = asked["address"]
        text = (
            text[: asked.start("address")] + text[asked.end("address") :]
        )  # a key may have words of an error
    if match := _STATUS.search(text):
        words = text[: match.start()]
        body = text[match.end() :]
        return _Answer(address, words, int(match[1] or 0), body)
    return _Answer(address, text, 0, "")


def _asks_for_credentials(address: str, path: str) -> bool:
    asked = address.partition("?")[0]
    is_objects_own = path and unquote(asked).endswith(f"/{path}")
    return not is_objects_own and _METADATA.match(asked) is not None


def translate(
    error: Exception, what: str, lacking: Sequence[str], secrets: Sequence[str], path: str = ""
) -> StoreError:
    """Return the leaf of `StoreError` for an obstore error. what: verb and address.

    lacking: as for `advice`. path: the object's path in its bucket; "" for several objects.
    """
    answer = _answer(error, path)
    # The only verb of two words; the address may contain spaces, so the text cannot be split from its end.
    verb = what.partition(" ")[0]
    if what.startswith("look up "):
        verb = "look up"
    address = what.removeprefix(f"{verb} ")
    code = _code(error, answer) or answer.status or type(error).__name__
    leaf = _leaf(error, answer, what, lacking, secrets, path)
    return leaf.with_message(str(leaf), what=verb, where=address, given=code)


def _code(error: Exception, answer: _Answer) -> str:
    """Return the store's code of the error, or ""."""
    # S3 reports each key that it did not delete in a response of status 200.
    undeleted = None
    if not answer.status:
        undeleted = _KEPT.search(brief_text(error))
    if undeleted:
        return undeleted["code"]
    return _xml(answer.body, "Code")


def _leaf(
    error: Exception, answer: _Answer, what: str, lacking: Sequence[str], secrets: Sequence[str], path: str
) -> StoreError:
    text = brief_text(error)
    status = answer.status
    words = answer.words
    code = _code(error, answer)
    brief = _brief(text, answer)
    undeleted = None
    if not status:
        undeleted = _KEPT.search(text)
    if undeleted:
        brief = f"the store answered {code} {undeleted['why']} for {undeleted['key']}"
    why = f"cannot {what}: {redact(brief, secrets)}"
    name = type(error).__name__
    if code == "NoSuchKey" and isinstance(error, FileNotFoundError):  # each log read ends with this response
        return ObjectNotFound(f"{why}; there is no such object")
    if re.search(_NO_TOKEN_YET, words):
        return Transient(f"{why}; what gives out credentials did not answer")
    if _asks_for_credentials(answer.address, path) or re.search(_NO_CREDENTIALS, words):
        return Forbidden(f"cannot {what}: no credentials were found; {advice(lacking)}")
    if code in _ARCHIVED_CODES:
        return StoreError(f"{why}; it lies in an archive tier: restore the object, then run this again")
    if code == "RequestTimeTooSkewed":
        return Forbidden(
            f"{why}; set this machine's clock (the store takes signatures of the last minutes only)"
        )
    if (other := other_region(_xml(answer.body, "Message"))) is not None:
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
    if "configured region" in words or code in _MOVED_CODES:
        return InvalidStore(f"{why}; {region_advice('')}")
    if status in _SLOW or code in _SLOW_CODES:
        return Throttled(why)
    if status in _AGAIN or code in _AGAIN_CODES or (status == 0 and "HTTP error" in words):
        return Transient(why)
    if is_unparsed(error):
        return InvalidStore(f"{why}; the bucket holds a key that is no '/'-separated path: move it elsewhere")
    if status == 400 and not code:  # the response to a HEAD has no body
        ask = "the region and the credentials" if what.partition(" s3://")[1] else "the credentials"
        return StoreError(f"{why}, and no reason: check {ask} (keys that expired or are of another kind)")
    return StoreError(why)


def is_conflict(error: Exception) -> bool:
    """Return whether a create failed because of an existing object or (409) a concurrent request."""
    return type(error).__name__ in ("AlreadyExistsError", "PreconditionError")


def is_past_end(error: Exception, path: str) -> bool:
    """Return whether a range begins after the last byte: HTTP 416, or detected by obstore. path: as for `translate`."""
    answer = _answer(error, path)
    return answer.status == 416 or "Wanted range starting at" in answer.words


def is_unparsed(error: Exception) -> bool:
    """Return whether obstore rejected a listing page because a key is not a valid path."""
    return type(error).__name__ == "InvalidPathError"


def _brief(text: str, answer: _Answer) -> str:
    if answer.status:
        code = _xml(answer.body, "Code")
        message = _xml(answer.body, "Message")
        return " ".join(f"the store answered {answer.status} {code} {message}".split())
    if text.startswith("Generic"):
        text = text.split(" - ", 1)[-1]
    return " ".join(text.split())[:300]


def _xml(text: str, name: str) -> str:
    match = re.search(_FIELD.format(name), text)
    return match.group(1) if match else ""


def other_region(text: str) -> str | None:
    """Return the region that S3 expected, or ""; None if `text` is about something else."""
    if "&" in text:
        from html import unescape  # 2 ms, which would delay a first response

        text = unescape(text)
    match = re.search(_OTHER_REGION, text)
    return None if match is None else match.group(1) or ""


def region_advice(region: str, option: str = "region", variable: str = "AWS_REGION") -> str:
    """Return advice for a bucket in another region; "" if unknown."""
    if region:
        return f"the bucket lies in {region}: give the option {option}={region} or {variable}={region}"
    return f"the bucket lies in another region: give the option {option} or {variable}"


def advice(lacking: Sequence[str]) -> str:
    """Return advice on credentials. lacking: secret options that a pickle dropped."""
    if lacking:
        return (
            f"the secret options {', '.join(lacking)} were given where the store was first opened and are "
            "never pickled: give workers credentials by environment, profile or instance role"
        )
    return "check the credentials (options, environment, profile, instance role) and their rights there"
