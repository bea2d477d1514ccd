"""Images, audio and stored bytes: verified, within limits, with fixed media types, and by Range (RFC 9110, 14)."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import loader
from loader.errors import InvalidRuntime, ObjectNotFound, PenstockError, StoreError
from loader.modalities.fields import last_word
from loader.modalities.video.request import is_run

from ..episodes.verified_field import VerifiedField, verify_field
from ..inspect.sample_record import playable, read_sample
from ..inspect.version_record import sample_fields
from ..kinds import find_kind
from ..kinds.kind import Media
from ..kinds.stored_bytes import BUDGET, card_field, decoded_bytes, read_bounded
from ..raw_source import RawObjectRecord, raw_object
from ..replays.image_placement import channels_last
from ..replays.replayed_values import SlotValues
from ..sample_relations import Neighbour, SimilarSample
from ..shown_values import field_facts, version_of
from .page import Site, error_status, in_thread, retry_header

_SPEC = re.compile(r"([0-9]*)-([0-9]*)")
_DIGITS = 18
"""Digits of a number compared exactly; a longer one is beyond every representation."""


def parse_range(request: Request, nbytes: int, etag: str) -> range | None:
    """Return the requested bytes: None for all, an empty range for status 416.

    Only GET has ranges. Other units, malformed ranges, several satisfiable ranges and an If-Range with another ETag
    select all bytes.
    """
    header = request.headers.get("range", "")
    if not header or request.method != "GET" or request.headers.get("if-range", etag) != etag:
        return None
    unit, _, text = header.partition("=")
    if unit.strip().lower() != "bytes":
        return None
    specs = [_SPEC.fullmatch(one.strip(" \t")) for one in text.split(",") if one.strip(" \t")]
    asked = [_spec_bytes(spec[1], spec[2], nbytes) if spec else None for spec in specs]
    ranges = [one for one in asked if one is not None]
    if not ranges or len(ranges) < len(asked):
        return None
    satisfiable = [one for one in ranges if one]
    if len(satisfiable) == 1:
        return satisfiable[0]
    if satisfiable:
        return None
    return range(0)


def _spec_bytes(first: str, last: str, nbytes: int) -> range | None:
    """Return a spec's bytes, empty if not satisfiable; None if malformed."""
    if not first:
        if last:
            return range(max(0, nbytes - _number(last)), nbytes)
        return None
    if last and _number(last) < _number(first):
        return None
    stop = min(nbytes, _number(last) + 1) if last else nbytes
    return range(min(_number(first), nbytes), stop)


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > _DIGITS:
        return int(10**_DIGITS)
    return int(digits)


STORED_TYPES = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
    "mp4": "video/mp4",
    "webm": "video/webm",
}
"""Field extension -> media type of stored bytes; others are downloads."""

MOST_DESCRIBED_BYTES = 2**20
"""Largest raw object described as text if a browser cannot show it."""
MOST_PART_BYTES = 2**20
"""Largest response to a stored field's Range."""
_REVALIDATED = {"cache-control": "private, no-cache"}
"""The next server here may use another root or recipe."""

Answer = Callable[[Site, Request], Response]


def media_type(field: str) -> str:
    """Return the media type as which browsers get a field, or ""; packets become mp4."""
    word = last_word(field)
    return STORED_TYPES.get("mp4" if word == "run" else word, "")


def media_route(site: Site, path: str, answer: Answer) -> Route:
    """Return a route that answers failures with a line of text, because an <img> shows no error page."""

    def respond(request: Request) -> Response:
        try:
            return _unless_known(site.opened.answer(lambda: answer(site, request)), request)
        except PenstockError as error:
            return _error_response(error)

    async def route(request: Request) -> Response:
        return await in_thread(site.media_threads, partial(respond, request))

    return Route(path, route)


def media_response(media: Media | None, trouble: str = "") -> Response:
    """Return an image or audio, or 404. trouble: why browsers must not cache it, or ""."""
    if media is None:
        return PlainTextResponse("this value has no image", 404)
    return Response(media.data, media_type=media.type, headers={} if trouble else _cache_headers(media.data))


def _error_response(error: PenstockError, status: int | None = None) -> Response:
    return PlainTextResponse(str(error)[:2000], status or error_status(error), retry_header(error))


def _cache_headers(data: bytes) -> dict[str, str]:
    return {"etag": _data_etag(data), **_REVALIDATED}


def _data_etag(data: bytes) -> str:
    return f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'


def _unless_known(response: Response, request: Request) -> Response:
    etag = response.headers.get("etag")
    if etag is None or etag not in request.headers.get("if-none-match", ""):
        return response
    headers = {name: response.headers[name] for name in ("cache-control", "etag")}
    return Response(status_code=304, headers=headers)


def slot_media(
    site: Site, run: str, values: SlotValues, trouble: str, stage: str, field: str
) -> tuple[Media, ...]:
    """Return a field's images and audio at a stage. Raises: InvalidRuntime for an unknown stage.

    The stage `original` is the transformed image in the decoded image's colours.
    """
    if stage not in ("decoded", "transformed", "original"):
        raise InvalidRuntime(f"stage = {stage[:100]!r}; accepted: decoded, transformed, original")
    sample = dict(values.decoded if stage == "decoded" else values.trained)
    if field not in sample:
        return ()
    if stage == "original":
        placement = values.placements.get(field)
        pixels = channels_last(sample[field])
        if placement is None or pixels is None:
            return ()
        # Without black the colours were not scaled linearly; uint8 has the decoded image's colours already.
        if not placement.black or pixels.dtype == np.uint8:
            return ()
        sample[field] = placement.original_colours(pixels)
    plan = site.opened.training(run).plan(values.step)
    facts = field_facts(sample, field, version_of(plan, values.source))
    # If a step is repeated, the slot may contain another sample.
    sample_id = values.address.version_id, values.address.ordinal, values.epoch
    key = ("slot", run, plan.hash, values.step, values.slot, sample_id, bool(trouble), stage, field)
    media: tuple[Media, ...] = site.opened.media.get(
        key, lambda: tuple(find_kind(sample[field], facts).detail(sample[field], facts))
    )
    return media


def sample_media(site: Site, version: loader.Version, ordinal: int, field: str) -> tuple[Media, ...]:
    def make() -> tuple[Media, ...]:
        data = read_sample(version, ordinal, field)
        facts = field_facts(data, field, version)
        with BUDGET.reserve(decoded_bytes(data[field], facts)):
            read = read_bounded(data[field], facts)
            return tuple(find_kind(read.value, read.facts).detail(read.value, read.facts))

    return site.opened.cached(site.opened.media, ("sample", version.id, ordinal, field), make)


def sample_thumbnail(site: Site, version: loader.Version, ordinal: int, field: str) -> Media | None:
    def make() -> Media | None:
        data = read_sample(version, ordinal, field)
        facts = field_facts(data, field, version)
        return find_kind(data[field], facts).thumbnail(data[field], facts)

    return site.opened.cached(site.opened.media, ("thumb", version.id, ordinal, field), make)


def stored_response(
    site: Site, version: loader.Version, ordinal: int, field: str, request: Request
) -> Response:
    """Return a field's verified bytes or a Range of them; packets become mp4."""
    if is_run(field):
        data, name = site.opened.media.get(
            ("playable", version.id, ordinal, field), lambda: playable(version, ordinal, field)
        )
        return bytes_response(data, name, f"{ordinal}.bin", request)
    if "range" in request.headers and field in sample_fields(version, [ordinal])[0]:
        item: VerifiedField = site.opened.episodes.get(
            ("field", version.id, ordinal, field), lambda: verify_field(version, ordinal, field)
        )
        nbytes = item.address.nbytes
        etag = _field_etag(version, ordinal, field)
        if (part := parse_range(request, nbytes, etag)) is not None:
            part = part[:MOST_PART_BYTES]  # a browser asks for the rest
            data = b""
            if part:
                data = item.read(part.start, len(part))
            return _part_response(data, part, nbytes, _media_type(field), {"etag": etag, **_REVALIDATED})
    etag = _field_etag(version, ordinal, field)
    return bytes_response(*playable(version, ordinal, field), f"{ordinal}.bin", request, etag)


def _field_etag(version: loader.Version, ordinal: int, field: str) -> str:
    """Return an ETag; the version's id covers the bytes."""
    return _data_etag(f"{version.id} {ordinal} {field}".encode())


def _media_type(name: str) -> str:
    return STORED_TYPES.get(last_word(name), "application/octet-stream")


def _part_response(
    data: bytes, part: range, nbytes: int, media_type: str, headers: Mapping[str, str]
) -> Response:
    """Return 206 with a part of `nbytes` bytes, or 416 if it is empty."""
    ranges = {"accept-ranges": "bytes"}
    if not part:
        text = f"the range has none of the {nbytes} bytes"
        return PlainTextResponse(text, 416, headers={**ranges, "content-range": f"bytes */{nbytes}"})
    ranges["content-range"] = f"bytes {part.start}-{part.stop - 1}/{nbytes}"
    return Response(data, 206, media_type=media_type, headers={**headers, **ranges})


def bytes_response(data: bytes, name: str, saved_as: str, request: Request, etag: str = "") -> Response:
    """Return bytes or a Range of them. name: its extension selects a media type or a download."""
    media_type = _media_type(name)
    etag = etag or _data_etag(data)
    headers = {"accept-ranges": "bytes", "etag": etag, **_REVALIDATED}
    if media_type == "application/octet-stream":
        headers["content-disposition"] = f'attachment; filename="{saved_as}"'
    part = parse_range(request, len(data), etag)
    if part is None:
        return Response(data, media_type=media_type, headers=headers)
    return _part_response(data[part.start : part.stop], part, len(data), media_type, headers)


def raw_shown(site: Site, uri: str) -> tuple[RawObjectRecord | None, str]:
    """Return (raw object, media type with which a browser shows it); (None, "") without URI.

    Others are fetched, up to 1 MiB.
    """
    media_type = STORED_TYPES.get(last_word(uri), "")
    item = raw_object(site.opened.raw, uri, most=0 if media_type else MOST_DESCRIBED_BYTES)
    if item is None or item.reason:
        media_type = ""
    return item, media_type


def raw_response(site: Site, uri: str, saved_as: str, request: Request) -> Response:
    """Return a raw object or a Range of it. Raises: InvalidRuntime if there is none."""
    if site.opened.raw is None or not uri:
        raise InvalidRuntime(
            "no raw object is on record" if site.opened.raw else "raw objects need --raw URL"
        )
    try:
        data = site.opened.raw.read(uri)
    except StoreError as error:  # the raw store failed, not the root's store
        return _error_response(error, 404 if isinstance(error, ObjectNotFound) else None)
    return bytes_response(data, uri, saved_as, request)


def neighbours_field(
    version: loader.Version | None,
    neighbours: Sequence[Neighbour | SimilarSample],
) -> str:
    """Return a thumbnail field of all neighbours, or ""."""
    if version is None or not neighbours:
        return ""
    fields = {card_field(names) for names in sample_fields(version, [one.ordinal for one in neighbours])}
    return fields.pop() if len(fields) == 1 else ""
