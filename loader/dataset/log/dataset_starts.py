"""Starts of datasets: which versions a dataset's names mean, so that a start by name need not read the log first.

    starts/<dataset>.json    {"format": 1, "manifests": {version id: path of its manifest}, "names": {name: version id}}

Names are "latest", numbers, tags and aliases. Writers replace the object after an entry that changes one. It is a
guess: two writers may end with the older one, and a killed one leaves none, so readers ask the log as well. A start
from a wrong guess is as slow as one without. Disks have none: a request there costs less than the file.
"""

import re
from collections.abc import Mapping
from contextlib import suppress

from ...errors import FormatTooNew, PenstockError, StoreError
from ...json_text import parse_json_object
from ...storage.store import Store
from ..names import LATEST
from .entries import DAMAGED, canonical
from .state import Ref, State, VersionRecord

FORMAT = 1
FOLDER = "starts/"
MOST_NUMBERS = 32
"""Newest versions that a dataset's start has by number."""
MOST_REFS = 256
"""Most tags and aliases in a dataset's start. The newest versions' come first."""
_ID = re.compile(r"v-[0-9a-f]{64}")
_DATA_FOLDER = re.compile(r"data/[A-Za-z0-9][\w.-]*/[\w-]+", re.ASCII)


Guess = tuple[str, str]
"""A version that a name may mean: its id, and the path of its manifest."""


def dataset_start_path(dataset: str) -> str:
    return f"{FOLDER}{dataset}.json"


def write_dataset_start(
    store: Store,
    state: State,
    dataset: str,
) -> None:
    """Replace the start of a dataset by the one of this state. One request.

    A failure is not an error: a start by name then waits for the log.
    """
    path = dataset_start_path(dataset)
    data = dump_dataset_start(state, dataset)
    with suppress(StoreError):
        store.put(path, data)


def dump_dataset_start(state: State, dataset: str) -> bytes:
    manifests: dict[str, str] = {}
    names: dict[str, str] = {}
    named_records = _version_records(state, dataset)
    for name, record in named_records.items():
        if record.retired is not None:
            continue
        names[name] = record.id
        manifests[record.id] = record.manifest
    body = {
        "format": FORMAT,
        "manifests": manifests,
        "names": names,
    }
    return canonical(body)


def _version_records(state: State, dataset: str) -> dict[str, VersionRecord]:
    """Return name -> version, retired ones included."""
    named: dict[str, VersionRecord] = {}
    versions = state.versions(dataset)
    for record in versions[-MOST_NUMBERS:]:
        name = str(record.number)
        named[name] = record
    newest = state.newest(dataset)
    if newest is not None:
        named[LATEST] = newest

    refs = [ref for ref in state.refs.values() if ref.dataset == dataset]
    refs.sort(key=_ref_number)
    for ref in refs[-MOST_REFS:]:
        target = state.version(dataset, ref.number)
        if target is not None:
            named[ref.name] = target
    return named


def _ref_number(ref: Ref) -> int:
    return ref.number


def read_dataset_start(store: Store, dataset: str) -> dict[str, Guess]:
    """Return the versions by name in a dataset's start; {} if there is none that can be used."""
    path = dataset_start_path(dataset)
    try:
        data = store.get(path).data
        return parse_dataset_start(data)
    except (PenstockError, *DAMAGED):
        return {}


def parse_dataset_start(data: bytes) -> dict[str, Guess]:
    """Return the versions by name. Raises: FormatTooNew; `DAMAGED` for other bytes."""
    body = parse_json_object(data)
    format_number = body["format"]
    if format_number != FORMAT:
        raise FormatTooNew(
            f"start of a dataset of format {format_number!r:.20}; this package reads {FORMAT}",
        )
    manifests = body["manifests"]
    names = body["names"]
    paths = parse_manifest_paths(manifests)
    guesses: dict[str, Guess] = {}
    for name, id in names.items():
        path = paths[id]
        guesses[name] = (id, path)
    return guesses


def parse_manifest_paths(manifests: Mapping[str, object]) -> dict[str, str]:
    """Return version id -> path of its manifest. Raises: ValueError for a path that no manifest has."""
    paths: dict[str, str] = {}
    for id, path in manifests.items():
        if not isinstance(path, str) or not _may_be_manifest(id, path):
            raise ValueError(
                f"{path!r:.200} is not a path of the manifest of {id!r:.80}",
            )
        paths[id] = path
    return paths


def _may_be_manifest(id: str, path: str) -> bool:
    # A manifest is named after its hash, which is the id. A forged path must not make a start read a large object.
    if not _ID.fullmatch(id):
        return False
    folder, _, name = path.rpartition("/")
    if not _DATA_FOLDER.fullmatch(folder):
        return False
    digits = id[2:18]
    return name == f"manifest-{digits}.json"
