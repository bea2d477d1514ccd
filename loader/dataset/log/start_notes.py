"""Start notes: where the manifests of a stored plan's versions are, so that a start need not read the log first.

    plans/<plan hash>.start.json    {"format": 1, "manifests": {version id: path of its manifest}}

They are a guess: `planned_versions` requests these paths early, and uses only objects that the log names.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...errors import FormatTooNew, PenstockError, StoreError
from ...json_text import parse_json_object
from ...storage import Store
from .dataset_starts import parse_manifest_paths
from .entries import DAMAGED, canonical
from .state import State

FORMAT = 1
MOST_VERSIONS = 64
"""Most versions of a plan that are opened together."""
START_SUFFIX = ".start.json"
"""End of the paths of start notes."""
_ID = re.compile(r"v-[0-9a-f]{64}")
_INNER_VIEWS = ("view", "documents", "episodes")
"""Names under which the JSON of a source or view has the view that it is made from."""


def start_path(plan: str) -> str:
    """Return the path of the start notes of a plan with this hash."""
    return f"plans/{plan}{START_SUFFIX}"


def plan_version_ids(body: object) -> list[str]:
    """Return the ids of the first `MOST_VERSIONS` versions in a plan's JSON, each once. Damaged parts are left out."""
    sources = None
    if isinstance(body, Mapping):
        sources = body.get("sources")
    if not isinstance(sources, Mapping):
        return []
    ids: dict[str, None] = {}
    for source in sources.values():
        id = _version_id(source)
        if id is not None:
            ids[id] = None
    return list(ids)[:MOST_VERSIONS]


def _version_id(source: object) -> str | None:
    """Return the id of the version that a plan's source reads, from its JSON; None for other sources, or damage."""
    view = source
    while isinstance(view, Mapping):  # parsed JSON is at most 64 levels deep
        id = view.get("version")
        if isinstance(id, str) and _ID.fullmatch(id):
            return id
        names = [name for name in _INNER_VIEWS if name in view]
        if not names:
            return None
        view = view[names[0]]
    return None


def write_start(
    store: Store,
    state: State | None,
    plan: str,
    body: Mapping[str, Any],
) -> None:
    """Store the notes of a plan with this JSON, if `state` has all of its versions. Costs one request.

    A failure is not an error: without notes a start waits for the log.
    """
    manifests: dict[str, str] = {}
    for id in plan_version_ids(body):
        record = None
        if state is not None:
            record = state.by_id(id)
        if record is None:
            return
        manifests[id] = record.manifest
    if manifests:
        notes = {"format": FORMAT, "manifests": manifests}
        with suppress(StoreError):
            store.put_if_absent(start_path(plan), canonical(notes))


def read_start(store: Store, plan: str) -> dict[str, str]:
    """Return the manifest paths by version id in the notes of a plan; {} if there are none that can be used."""
    try:
        data = store.get(start_path(plan)).data
        return parse_start_notes(data)
    except (PenstockError, *DAMAGED):
        return {}


def parse_start_notes(data: bytes) -> dict[str, str]:
    """Return the manifest paths by version id in these notes. Raises: FormatTooNew; `DAMAGED` for other bytes."""
    body = parse_json_object(data)
    if body["format"] != FORMAT:
        raise FormatTooNew(f"start notes of format {body['format']!r:.20}; this package reads {FORMAT}")
    return parse_manifest_paths(body["manifests"])
