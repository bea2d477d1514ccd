"""`penstock takedown run`: the steps that a deny entry asks for, found and done.

1. The findings go on record.
2. Per dataset the version without the samples is committed.
3. The versions that had them are retired.
4. Objects that no version protects are rewritten or deleted (`steps.py`).
5. Raw objects go last, when all that stays is known.

Each step finds what is left to do from what is stored, so a run that was killed is run again. The bytes of retired
versions go when a collector sweeps them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from loader import Root
from loader.dataset.log.state import Deny
from loader.errors import TakedownNotFound
from loader.storage import is_there

from ...denied.find import all_datasets, find
from ...denied.keys_tables import KeysTables
from ...denied.record import add_to_record, read_record
from ...denied.sources import landings, why_not
from ...progress import progress
from .outcome import Ran
from .raw_objects import (
    FilesBeside,
    RawDeletion,
    Uris,
    check_whole,
    deleted_raw,
    raw_places,
    used_by_others,
)
from .steps import Steps

if TYPE_CHECKING:
    from ...compute.cluster import Cluster


def deny_entry(root: Root, n: int) -> Deny:
    """Return the takedown of this number. Raises: TakedownNotFound, naming the existing ones."""
    for deny in root.state.denies:
        if deny.n == n:
            return deny
    there = ", ".join(str(deny.n) for deny in root.state.denies) or "none"
    raise TakedownNotFound(
        f"{root.url} has no takedown {n}; it has {there}. penstock takedown request makes one"
    )


def keys_tables(root: Root, deny: Deny, cluster: "Cluster | None") -> KeysTables:
    """Return what reads the tables of keys. cluster: whose machines do; None: this process."""
    if cluster is None:
        return KeysTables(root, deny)
    from ...denied.keys_job import KeysTablesOnCluster

    return KeysTablesOnCluster(root, deny, cluster)


def run_takedown(
    root: Root,
    n: int,
    *,
    apply: bool,
    raw: RawDeletion | None = None,
    raw_below: Collection[str] = (),
    cluster: "Cluster | None" = None,
) -> Ran:
    """Find the samples, and with `apply` redact them.

    Reads the keys of every version, and writes each shard that has one of the samples once.

    raw: deletes each raw object that nothing else was cut from and that lies below a source, after its further files;
    None keeps raw objects.
    raw_below: the sources; where it is empty, the landing places of the batches of the object's dataset.
    cluster: whose machines read the tables of keys; None: this process.

    Raises: TakedownNotFound for a takedown that was not requested; InvalidRuntime as `check_whole`; Corrupt;
    StoreError; Fenced; with a cluster as `outcomes_anew`.
    """
    deny = deny_entry(root, n)
    check_whole(root, deny)
    tables = keys_tables(root, deny, cluster)
    known = read_record(root.store, n).marks
    found = [
        find(tables, dataset, known.get(dataset, ()))
        for dataset in progress(all_datasets(root), f"takedown {n}: find")
    ]
    ran = Ran(n=n, applied=apply)
    ran.samples = {one.dataset: sum(map(len, one.rows.values())) for one in found if one.rows}
    ran.adopted = sorted(set().union(*(one.adopted for one in found)))
    uris: Uris = {one.dataset: one.uris for one in found}
    _sort_raw(root, uris, ran)
    if apply:
        _note_raw(root, deny, uris, ran.uris)
        uris = {
            one.dataset: Steps(tables, one, ran).take() for one in progress(found, f"takedown {n}: redact")
        }
        _sort_raw(root, uris, ran)  # again: what others published meanwhile
        _note_raw(root, deny, uris, ran.uris)
        if raw is not None:
            alone = _files(root, uris, ran, raw_below, raw.files_beside)
            _delete_raw(root, deny, uris, alone, raw.delete)
    record = read_record(root.store, n)
    ran.deleted = sorted(deleted_raw(record, deny, uris) & set(ran.uris))
    ran.waiting = sum(1 for place in record.having("absent") if is_there(root.store, place["path"]))
    return ran


def _sort_raw(root: Root, uris: Uris, ran: Ran) -> None:
    """Sort the raw objects: cut only for these samples, or needed by others too."""
    shared = used_by_others(root, uris)
    ran.uris, ran.shared = sorted(set().union(*uris.values()) - shared), sorted(shared)


def _note_raw(root: Root, deny: Deny, uris: Uris, alone: Collection[str]) -> None:
    """Put raw objects on record as long as something names them: their addresses are known to nothing afterwards."""
    add_to_record(root.store, deny.n, raw_places(deny, uris, alone, deleted=False))


def _files(
    root: Root, uris: Uris, ran: Ran, raw_below: Collection[str], files_beside: FilesBeside
) -> dict[str, list[str]]:
    """Return the raw objects that are to be deleted, each with its files; the others are refused, with the reason.

    An object itself is the last of its files: it names the others.
    """
    sources = {
        of: raw_below or landings(root.store, of) for of, some in uris.items() if set(some) & set(ran.uris)
    }
    places = {uri: set().union(*(sources[of] for of in sources if uri in uris[of])) for uri in ran.uris}
    told = {uri: why_not(uri, places[uri], root.url) for uri in ran.uris}
    ran.refused = {uri: why for uri, why in told.items() if why}
    beside = files_beside({uri: places[uri] for uri in ran.uris if uri not in ran.refused}, ran.refused)
    needed = used_by_others(
        root, {of: {one for uri in some for one in beside.get(uri, ())} for of, some in uris.items()}
    )
    for uri, files in beside.items():
        whys = [f"its file {one}: {why}" for one in files if (why := why_not(one, places[uri], root.url))]
        whys += [
            f"its file {one}: something else was cut of it, or is to be" for one in files if one in needed
        ]
        if whys:
            ran.refused[uri] = whys[0]
    return {uri: [*beside.get(uri, ()), uri] for uri in ran.uris if uri not in ran.refused}


def _delete_raw(
    root: Root,
    deny: Deny,
    uris: Uris,
    alone: Mapping[str, Sequence[str]],
    delete: Callable[[str], None],
) -> None:
    """Delete raw objects, then put them on record as deleted, also those before one that is refused.

    alone: raw object -> its files.
    """
    done = []
    try:
        for uri, files in alone.items():
            for file in files:
                delete(file)
            done.append(uri)
    finally:
        add_to_record(root.store, deny.n, raw_places(deny, uris, done, deleted=True))
