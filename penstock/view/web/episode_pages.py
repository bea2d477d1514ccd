"""An episode's page, and what its script asks for: moments, lanes, frames, and trained windows."""

import json
import struct
from decimal import Decimal
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

import loader
from loader.errors import InvalidRuntime, PenstockError

from ...text import clean
from ..episodes.episode_record import episode_record, moment, step_time
from ..episodes.open_episode import OpenEpisode, is_episode, open_episode
from ..episodes.stream_summary import StreamSummary
from ..episodes.trained_windows import trained_windows
from ..inspect.sample_record import check_ordinal
from ..inspect.version_record import sample_fields
from ..json_record import plain
from ..kinds.image import small_image, value_scale
from ..kinds.kind import Media
from ..kinds.stored_bytes import BUDGET
from ..page_address import address
from ..sections.sample import SampleMedia, episode_sections
from ..similarity_query import like_page
from .media import media_response, media_route, media_type, neighbours_field, raw_shown
from .page import MOST_DIGITS, Page, Site, html, is_fragment, number

VERSION = "/v/{dataset}/{number:number}"
SAMPLE = f"{VERSION}/s/{{ordinal:number}}"
LANE_S = 1.0
"""Seconds that a lane's request reads."""
MOST_COLUMNS = 4096
"""Most columns of a lane."""
MOST_DIMS = 64
"""Most dimensions in one response."""
FRAME_EDGE_PX = 640
"""Decoded frame's longer side, in px."""
MOST_RUNS = 8
"""Most runs opened by one request."""


def episode_routes(site: Site) -> list[Route]:
    return [
        media_route(site, f"{SAMPLE}/moment", _moment),
        media_route(site, f"{SAMPLE}/lane/{{field}}", _lane),
        media_route(site, f"{SAMPLE}/frame/{{field}}/{{n:number}}", _frame),
        media_route(site, f"{SAMPLE}/trained", _trained_windows),
        media_route(site, f"{VERSION}/window", _window),
    ]


def requested_version(site: Site, request: Request) -> loader.Version:
    return site.opened.version(request.path_params["dataset"], request.path_params["number"])


def episode_page(site: Site, request: Request) -> Page:
    """Return an episode's page. `?t=` is a time, `?row=` a row of `?anchor=`."""
    episode = _episode(site, request)
    query = request.query_params
    record = episode_record(episode, query.get("anchor", ""), site.opened.slice_search)
    version = episode.version
    sample = record.sample
    raw, raw_type = raw_shown(site, sample.provenance.get("raw_uri", ""))
    media = SampleMedia(
        raw=raw,
        raw_type=raw_type,
        thumb=neighbours_field(version, sample.neighbours),
        like=like_page(version, sample.key),
    )
    more = {
        "page": episode_sections(record, media),
        "at_ns": _start(episode, record.anchor, query.get("t", ""), query.get("row", "")),
        "plays": {one.field: media_type(one.field) for one in record.cameras},
    }
    title = f"{clean(sample.key, 120)} of {version.name}"
    return Page(template="episode", record=record, title=title, more=more)


def _start(episode: OpenEpisode, anchor: str, time: str, row: str) -> int:
    """Return the cursor's start after the axis's: a row's, or a time. Raises: InvalidRuntime."""
    if row:
        if (
            not row.isdecimal()
            or len(row) > MOST_DIGITS
            or not anchor
            or int(row) >= episode.n_values(anchor)
        ):
            n = 0
            if anchor:
                n = episode.n_values(anchor)
            raise InvalidRuntime(f"row = {row!r:.100}; {anchor or 'this episode'} has {n} rows, from 0")
        return episode.time_of(anchor, int(row))
    if not time:
        return 0
    try:
        # A float of seconds would miss the nanosecond of a row.
        exact = Decimal(time[:40])
        if not episode.is_steps:
            exact *= 10**9
        return int(min(max(exact, Decimal(0)), Decimal(episode.length_ns)))
    except (ArithmeticError, ValueError) as error:
        what = "a step, such as 12" if episode.is_steps else "seconds, such as 4.5667"
        raise InvalidRuntime(f"t = {time!r:.100}; accepted: {what}") from error


def _episode(site: Site, request: Request) -> OpenEpisode:
    version = requested_version(site, request)
    ordinal = request.path_params["ordinal"]
    check_ordinal(version, ordinal)
    (names,) = sample_fields(version, [ordinal])
    if not is_episode(version, names):
        raise InvalidRuntime(f"sample {ordinal} of {version.name} is not an episode: it has no stream")
    key = ("episode", version.id, ordinal)
    return site.opened.cached(site.opened.episodes, key, lambda: open_episode(version, ordinal, names))


def _moment(site: Site, request: Request) -> Response:
    episode = _episode(site, request)
    query = request.query_params
    at_ns = number(request, "at", 0)
    by = query.get("by", "")
    if by:
        digits = by.removeprefix("-")
        if not digits.isdecimal() or len(digits) > MOST_DIGITS:
            raise InvalidRuntime(f"by = {by!r:.100}; pass a whole number")
        at_ns = step_time(episode, at_ns, query.get("of", ""), int(by))
    return JSONResponse(moment(episode, at_ns, query.get("anchor", "")).to_json())


def _lane(site: Site, request: Request) -> Response:
    """Return a range of a stream for drawing, in little-endian words.

    `uint32` (columns, dimensions, 1 if each column is a row, per cent of the stream that is read). `float64` times
    after the axis's start. `float32` smallest values by dimension; the largest unless each column is a row. A request
    reads a stream with row blocks for `LANE_S` seconds: columns that no request has reached are NaN.
    """
    episode = _episode(site, request)
    field = request.path_params["field"]
    if field not in episode.streams or field in episode.errors or not episode.has_times(field):
        raise InvalidRuntime(episode.errors.get(field) or f"{field!r:.100} is not a stream on the axis")
    summary: StreamSummary = site.opened.episodes.get(
        ("stream", episode.version.id, episode.address.ordinal, field),
        lambda: site.opened.outage.ask(lambda: episode.summary(field)),
        lambda known: known.field is episode.fields[field],  # whose blocks that summary checked
    )
    first = number(request, "first", 0)
    stop = number(request, "stop", summary.dims)
    begin = number(request, "from", 0)
    end = number(request, "to", episode.length_ns)
    n_columns = number(request, "columns", 1024)
    if (
        not 0 <= first < stop <= summary.dims
        or stop - first > MOST_DIMS
        or not 1 <= n_columns <= MOST_COLUMNS
    ):
        raise InvalidRuntime(
            f"dimensions {first} to {stop} in {n_columns} columns; {field!r} has {summary.dims}; accepted: up to "
            f"{MOST_DIMS} in 1 to {MOST_COLUMNS} columns"
        )
    rows = episode.row_number(field, begin), episode.row_number(field, end) + 2
    share = 1.0
    if not summary.is_narrow(*rows, n_columns):
        share = site.opened.outage.ask(lambda: summary.read_more(LANE_S))
    columns = summary.columns(*rows, n_columns, range(first, stop))
    times = columns.rows if episode.is_steps else episode.clocks[field][columns.rows] - episode.origin_ns
    exact = columns.low is columns.high or np.array_equal(columns.low, columns.high, equal_nan=True)
    n = len(columns.rows)
    values: list[Any] = [columns.low] if exact else [columns.low, columns.high]
    body = struct.pack("<4I", n, stop - first, exact, int(100 * share)) + times.astype("<f8").tobytes()
    body += b"".join(np.ascontiguousarray(one, "<f4").tobytes() for one in values)
    return Response(body, media_type="application/octet-stream")


def _frame(site: Site, request: Request) -> Response:
    episode = _episode(site, request)
    field = request.path_params["field"]
    n = request.path_params["n"]
    if field not in episode.cameras or field in episode.errors:
        raise InvalidRuntime(episode.errors.get(field) or f"{field!r:.100} is not a camera of this episode")

    def make() -> Media:
        with BUDGET.reserve(episode.frame_bytes(field)):
            frame = site.opened.outage.ask(lambda: episode.frame(field, n))
            frame = frame[:, :, None] if frame.ndim == 2 else frame
            return small_image(frame, value_scale(frame), FRAME_EDGE_PX)

    key = ("frame", episode.version.id, episode.address.ordinal, field, n)
    media: Media = site.opened.media.get(key, make)
    return media_response(media)


def _trained_windows(site: Site, request: Request) -> Response:
    """Return the windows in the open runs, in `?run=`, and with `?more=1` in up to 8 others.

    The page's script gets them as a list in HTML, with the first run that has windows as JSON.
    """
    episode = _episode(site, request)
    query = request.query_params
    search = site.opened.run_search()
    asked: list[str] = []
    if query.get("run"):
        asked.append(query["run"])
    if query.get("more"):
        asked += search.unsearched[:MOST_RUNS]
    names = dict.fromkeys([*asked, *(one.name for one in site.opened.trainings())])
    runs = []
    failed = dict[str, str]()
    for name in names:
        try:
            runs.append(trained_windows(site.opened.training(name), episode))
        except PenstockError as error:
            failed[clean(name, 80)] = clean(f"{type(error).__name__}: {error}", 400)
    others = [name for name in search.unsearched if name not in names]
    body = {"runs": runs, "failed": failed, "unsearched": len(others), "error": clean(search.error, 400)}
    if not is_fragment(request):
        return JSONResponse(plain(body))
    drawn = next((json.dumps(plain(run)) for run in runs if run.windows), "")
    return html(site, request, Page(template="trained", record=body, title="", more={"drawn": drawn}))


def _window(site: Site, request: Request) -> Response:
    """Redirect from a window's key, `?key=<episode>@<row>`, to its episode."""
    version = requested_version(site, request)
    key = request.query_params.get("key", "")
    episode, _, row = key.rpartition("@")
    (ordinal,) = version.select().ordinals([episode]).tolist() if episode and row.isdecimal() else (-1,)
    if ordinal < 0:
        raise InvalidRuntime(f"key = {key!r:.200}; accepted: <episode>@<row> of an episode of {version.name}")
    query = {name: request.query_params.get(name, "") for name in ("anchor", "run")}
    return RedirectResponse(address("s", ordinal, row=row, **query), 303)
