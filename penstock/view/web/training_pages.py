"""Training pages: runs, steps, slots, and their images."""

from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

import loader
from loader.api.explain import provenance
from loader.order.sources.window_layout import ROW
from loader.order.sources.window_view import WindowView

from ..inspect.plain_text import unrecorded_lines
from ..inspect.proofs import STAGES
from ..inspect.recorded_step import attach_recorded_step
from ..inspect.run_comparison import run_comparison
from ..inspect.run_record import MOST_LARGEST, MOST_SPIKES, run_record
from ..inspect.shown_batch import PICTURED
from ..inspect.slot_record import slot_record
from ..inspect.step_record import part_of, step_record
from ..inspect.step_window import MOST_STEPS, step_window
from ..replays.training import Training
from ..shown_values import version_of
from .media import media_response, media_route, neighbours_field, raw_response, raw_shown, slot_media
from .page import Page, Site, address, number, page_routes


def routes(site: Site) -> list[Route]:
    return [
        media_route(site, "/r/{run}/{step:number}/thumb/{slot:number}/{field}", _step_thumbnail),
        media_route(site, "/r/{run}/{step:number}/{slot:number}/{stage}/{field}/{n:number}", _slot_media),
        media_route(site, "/r/{run}/{step:number}/{slot:number}/raw", _raw),
        *page_routes(site, "/r/{run}/{step:number}/{slot:number}", _slot),
        *page_routes(site, "/r/{run}/{step:number}", _step),
        Route("/r/{run}/against", _to_comparison),
        *page_routes(site, "/r/{run}/against/{other}", _against),
        *page_routes(site, "/r/{run}/window", _window),
        *page_routes(site, "/r/{run}", _run),
    ]


def _run(site: Site, request: Request) -> Page:
    training = _training(site, request)
    name = training.name
    if training.charted is None:
        plan = training.plan(0)
        described = {"plan": plan.hash, "describe": str(plan.describe())}
        more = {"name": name, "lines": described["describe"].splitlines()}
        return Page(template="plan", record=described, title=name[:14], more=more)
    record = run_record(training, number(request, "unusual", 0))
    return Page(
        template="run", record=record, title=name, more={"most": MOST_SPIKES, "largest": MOST_LARGEST}
    )


async def _to_comparison(request: Request) -> Response:
    return RedirectResponse(address("against", request.query_params.get("run", "")), 303)


def _against(site: Site, request: Request) -> Page:
    runs = request.path_params["run"], request.path_params["other"]
    record = run_comparison(site.opened.root, *(loader.read_trail(site.opened.root, run) for run in runs))
    return Page(template="against", record=record, title=" against ".join(runs))


def _window(site: Site, request: Request) -> Page:
    training = _training(site, request)
    first, last = (
        number(request, name) if request.query_params.get(name) else None for name in ("from", "to")
    )
    record = step_window(training, first, last)
    title = f"{training.name} steps {record.first} to {record.last}"
    more = {"most_steps": MOST_STEPS, "unrecorded": unrecorded_lines(record)}
    return Page(template="window", record=record, title=title, more=more)


def _step(site: Site, request: Request) -> Page:
    training, step = _training(site, request), int(request.path_params["step"])
    with attach_recorded_step(training, step):
        rank, world_size = _part(training, request, step)
        batch, trouble = site.opened.batch(training.name, step, rank, world_size)
        record = step_record(training, batch, site.opened.functions(training, step, trouble), trouble)
    more = {"recipe": site.opened.recipe or "", "pictured": PICTURED, "stages": STAGES}
    return Page(template="step", record=record, title=f"{training.name} step {step}", more=more)


def _slot(site: Site, request: Request) -> Page:
    training, step = _training(site, request), int(request.path_params["step"])
    with attach_recorded_step(training, step, int(request.path_params["slot"])):
        return _slot_page(site, request, training, step)


def _slot_page(site: Site, request: Request, training: Training, step: int) -> Page:
    values, trouble = site.opened.slot(training.name, step, int(request.path_params["slot"]))
    record = slot_record(
        training,
        values,
        trouble,
        site.opened.run_search(request.query_params.get("trainings")),
        functions=site.opened.functions(training, step, trouble),
        part=partial(site.opened.part, training, step),
    )
    rank, world_size = _part(training, request, step)
    pictures = {
        row.field: {
            stage: len(slot_media(site, training.name, values, trouble, stage, row.field))
            for stage in ("decoded", *(("transformed", "original") if row.transformed is not None else ()))
        }
        for row in record.fields
    }
    sizes = {
        name: (value.shape[1], value.shape[0])
        for name, value in values.decoded.items()
        if getattr(value, "ndim", 0) == 3
    }
    plan = training.plan(step)
    version, view = version_of(plan, values.source), plan.sources[values.source].view
    window = {}
    if isinstance(view, WindowView) and ROW in values.decoded:
        window = {"row": int(values.decoded[ROW]), "anchor": view.layout.anchor}
    more = {
        "window": window,
        "pictures": pictures,
        "stages": STAGES,
        "sizes": sizes,
        "rank": rank,
        "world_size": world_size,
        "raw": raw_shown(site, record.provenance.get("raw_uri", "")),
        "thumb": neighbours_field(version, record.neighbours),
    }
    return Page(
        template="slot", record=record, title=f"{training.name} step {step} slot {values.slot}", more=more
    )


def _raw(site: Site, request: Request) -> Response:
    run, step = request.path_params["run"], int(request.path_params["step"])
    values, _ = site.opened.slot(run, step, int(request.path_params["slot"]))
    version = version_of(site.opened.training(run).plan(step), values.source)
    origin = provenance(version, [values.address])[0] if version is not None else {}
    return raw_response(site, origin.get("raw_uri", ""), f"raw-{step}-{values.slot}.bin", request)


def _step_thumbnail(site: Site, request: Request) -> Response:
    run, step = request.path_params["run"], int(request.path_params["step"])
    slot, field = int(request.path_params["slot"]), request.path_params["field"]
    rank, world_size = _part(site.opened.training(run), request, step)
    thumbnails, trouble = site.opened.thumbnails(run, step, rank, world_size, slot)
    return media_response(thumbnails.get(field), trouble)


def _slot_media(site: Site, request: Request) -> Response:
    run, step = request.path_params["run"], int(request.path_params["step"])
    values, trouble = site.opened.slot(run, step, int(request.path_params["slot"]))
    media = slot_media(site, run, values, trouble, request.path_params["stage"], request.path_params["field"])
    n = int(request.path_params["n"])
    return media_response(media[n] if n < len(media) else None, trouble)


def _training(site: Site, request: Request) -> Training:
    return site.opened.training(request.path_params["run"])


def _part(training: Training, request: Request, step: int) -> tuple[int, int]:
    part = [number(request, name) if request.query_params.get(name) else None for name in ("rank", "world")]
    return part_of(training, step, *part)
