"""`penstock takedown request|ls|run|prove`: delete samples everywhere, with proof."""

import json
import secrets
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime, VersionNotFound

from ..text import lines_text
from .verb import Answer, Table, Verb, argument, cluster_argument, flag, list_option, parse_cluster, verb

if TYPE_CHECKING:
    from loader.dataset.log.denies import Target

FORM = ("{:>8}", "  {:<16}", " {}", ": {}")


@verb(
    "deny a subject, raw object or sample, for ever",
    list_option("--subject", "person in the samples"),
    list_option("--raw", "key, URI or SHA-256 of a raw object, or of one of its files"),
    list_option("--sample", "key of a sample; needs --dataset"),
    argument("--dataset", "only this dataset", default=""),
    argument("--reason", "such as a ticket; no names, because the log is permanent", required=True),
    argument("--by", "requester", required=True),
)
def request(arguments: Namespace) -> Answer:
    """Deny samples: from now on, no commit keeps them. Nothing is rewritten yet.

    Naming one file of a multi-file raw object denies the whole object. Raises: VersionNotFound; Corrupt.
    """
    from loader.dataset.log.denies import Target

    from ..denied.find import all_datasets
    from ..upkeep.takedown.raw_objects import objects_named

    targets = [
        Target(kind=kind, value=value, dataset=arguments.dataset)
        for kind in ("subject", "raw", "sample")
        for value in getattr(arguments, kind)
    ]
    root = loader.Root(arguments.root)
    # A takedown of a misspelled dataset would deny nothing, and nothing can be removed from the log.
    if arguments.dataset and arguments.dataset not in (there := all_datasets(root)):
        raise VersionNotFound(
            f"{root.url} has no dataset {arguments.dataset!r}, and a takedown is permanent; its "
            f"datasets: {', '.join(there) or 'none'}. Name one of these, or leave out --dataset for all",
            dataset="",
        )
    whole = objects_named(root, arguments.raw, arguments.dataset) if arguments.raw else []
    # A raw object of several files is one sample's source: a denied file must not survive beside the others.
    targets += [Target(kind="raw", value=uri, dataset=arguments.dataset) for uri in whole]
    sequences = _sequences_to_deny(root, targets)
    deny = root.log.deny([*targets, *sequences], arguments.reason, arguments.by)
    body = {"takedown": deny.n, "scope": deny.scope, "hashes": list(deny.hashes), "salt": deny.salt}
    text = f"takedown {deny.n} is in the log; penstock takedown run {deny.n} shows its samples"
    notes = [f"{uri} has a file of that name; all of it is included" for uri in whole]
    if sequences:
        notes.append(f"{len(sequences)} stored sequences have such documents, and are included")
    return body | {"whole": whole, "sequences": len(sequences)}, "\n".join([*notes, text]), 0


def _sequences_to_deny(root: "loader.Root", targets: "list[Target]") -> "list[Target]":
    """Return the stored sequences that have documents which the targets name."""
    from loader.dataset.log.denies import hashes
    from loader.dataset.log.state import Deny

    from ..packing.denied_sequences import pending_sequences

    # This salt only matches documents here. The log's entry gets its own.
    salt = secrets.token_hex(16)
    scope = " ".join(sorted({target.kind for target in targets}))
    # Not in the log. No entry has number 0, which stands for rows that nothing denies.
    provisional = Deny(n=1, hashes=tuple(hashes(salt, targets)), scope=scope, salt=salt)
    return pending_sequences(root, [provisional]).get(provisional.n, [])


def _deny_late_sequences(root: "loader.Root", ids: Sequence[int]) -> list[int]:
    """Deny the sequences of these takedowns' documents that were published while they were requested.

    Return the numbers of all takedowns to run. Raises: TakedownNotFound.
    """
    from ..packing.denied_sequences import pending_sequences
    from ..upkeep.takedown.takedown_run import deny_entry

    denies = [deny_entry(root, n) for n in ids]
    # One search for all takedowns: it reads the members of every stored sequence.
    late = pending_sequences(root, denies)
    numbers = list(ids)
    for deny in denies:
        sequences = late.get(deny.n)
        if sequences is None:
            continue
        entry = root.log.deny(sequences, deny.reason, deny.by)
        numbers.append(entry.n)
    return numbers


def _check_sequences(root: "loader.Root", n: int) -> None:
    """Raise InvalidRuntime if a stored sequence has documents of a takedown, but is itself denied by no takedown.

    n: the takedown's number.
    """
    from ..packing.denied_sequences import pending_sequences
    from ..upkeep.takedown.takedown_run import deny_entry

    sequences = pending_sequences(root, [deny_entry(root, n)]).get(n, [])
    if sequences:
        raise InvalidRuntime(
            f"{len(sequences)} stored sequences of {sequences[0].dataset!r} have documents that takedown {n} denies, "
            f"and no takedown denies them: penstock takedown run {n} --apply does"
        )


@verb("list requests")
def ls(arguments: Namespace) -> Answer:
    denies = loader.Root(arguments.root).state.denies
    body = [{"takedown": one.n, "scope": one.scope, "reason": one.reason, "by": one.by} for one in denies]
    rows = [(one.n, one.scope, one.by, one.reason) for one in denies]
    table = Table(form=FORM, header=("takedown", "scope", "by", "reason"), rows=rows, titled=False)
    return body, [table] if rows else "no takedowns", 0


_WHICH = (
    list_option("--cache DIR", "folder of a node cache"),
    list_option("--cache-peers LIST", "servers of a cluster's cache, as in penstock cache ls"),
    cluster_argument("file of a cluster whose machines read the tables; names are not sent to them"),
)


@verb(
    "find the samples, and with --apply redact them",
    argument("id", "number of a takedown (default: all)", type=int, nargs="?"),
    flag("--apply", "write the takedown (default: only list it)"),
    flag("--delete-raw", "also delete raw objects at their source, unless other samples need them"),
    list_option("--raw-below URL", "with --delete-raw: location below which raw objects may be deleted"),
    list_option(
        "--mirror URL", "mirror to clean too: cards, plans, views, packs, and old versions in its S3 bucket"
    ),
    argument("--checkpoints URL", "root of the trainings' checkpoints (default: the same root)"),
    *_WHICH,
)
def run(arguments: Namespace) -> Answer:
    from ..denied.record import read_record
    from ..denied.sources import check_place
    from ..formats.files_beside import files_beside
    from ..train.trained_on import of_dataset, trained_on
    from ..upkeep.takedown.mirrors import purge_mirror
    from ..upkeep.takedown.peer_pages import purge_peers
    from ..upkeep.takedown.raw_objects import RawDeletion, delete_object
    from ..upkeep.takedown.remains import delete_noncurrent, purge_cache
    from ..upkeep.takedown.takedown_run import run_takedown

    if arguments.delete_raw and not arguments.apply:
        raise InvalidRuntime("--delete-raw without --apply deletes nothing; give both, or neither")
    if arguments.raw_below and not arguments.delete_raw:
        raise InvalidRuntime("--raw-below without --delete-raw deletes nothing; give both, or neither")
    raw_below = [check_place(place) for place in arguments.raw_below]
    cluster = parse_cluster(arguments)
    root = loader.Root(arguments.root)
    if arguments.delete_raw and not raw_below:
        raise InvalidRuntime(_which_place(root))
    checkpoints = None
    if arguments.checkpoints is not None:
        checkpoints = loader.Root(arguments.checkpoints)

    def trained(dataset: str, keys: Collection[str]) -> list[dict[str, Any]]:
        return [run.to_json() for run in trained_on(root, of_dataset(dataset), keys, checkpoints)]

    ids = [arguments.id] if arguments.id is not None else [one.n for one in root.state.denies]
    if arguments.apply:
        # Only with --apply, since it writes to the log; the plan of a takedown changes nothing.
        ids = _deny_late_sequences(root, ids)
    body = []
    lines = []
    for n in ids:
        ran = run_takedown(
            root,
            n,
            apply=arguments.apply,
            raw=RawDeletion(delete_object, files_beside) if arguments.delete_raw else None,
            raw_below=raw_below,
            cluster=cluster,
            trained=trained,
        )
        # Caches, old object versions and mirrors follow the record that the takedown just wrote.
        pages = old = mirrored = 0
        if arguments.apply:
            record = read_record(root.store, n)
            pages = sum(purge_cache(folder, record, root) for folder in arguments.cache)
            pages += sum(purge_peers(peers, record) for peers in arguments.cache_peers)
            old = delete_noncurrent(root.store, record.paths)
            mirrored = sum(purge_mirror(url, record, root.store) for url in arguments.mirror)
        body.append({**ran.to_json(), "pages": pages, "noncurrent": old, "mirrored": mirrored})
        lines.append(ran.text())
    return body, "\n".join(lines) or "no takedowns", 0


def _which_place(root: "loader.Root") -> str:
    """Return the error for --delete-raw without --raw-below: batch manifests must not choose what is deleted."""
    from ..denied.find import all_datasets
    from ..denied.sources import landings

    places = sorted({place for dataset in all_datasets(root) for place in landings(root.store, dataset)})
    known = ""
    if places:
        known = f"; the batches under this root name {', '.join(places)}"
    return f"--delete-raw deletes only below places that you name: add --raw-below PLACE{known}"


@verb(
    "check every location",
    argument("id", "the takedown's number", type=int),
    argument("--out", "file for the proof, as JSON"),
    list_option("--mirror URL", "reachable mirror"),
    list_option("--elsewhere TEXT", "location out of penstock's reach, such as 'backups until 2026-12-24'"),
    list_option(
        "--keeps-nothing URL",
        "root or mirror that cannot list old versions, soft deletes and unfinished uploads, if its operator "
        "vouches that it keeps none; the proof records this as a statement",
    ),
    *_WHICH,
)
def prove(arguments: Namespace) -> Answer:
    """Exit with 1 if the proof is incomplete."""
    from ..places import check_file_apart
    from ..upkeep.takedown.prove import prove as make

    root = loader.Root(arguments.root)
    if arguments.out:
        check_file_apart(root.store, arguments.out, "Choose a path beside the root")
    _check_sequences(root, arguments.id)
    proof = make(
        root,
        arguments.id,
        mirrors=arguments.mirror,
        caches=arguments.cache,
        cache_peers=arguments.cache_peers,
        known=arguments.elsewhere,
        keeps_nothing=arguments.keeps_nothing,
        cluster=parse_cluster(arguments),
    )
    if arguments.out:
        try:
            Path(arguments.out).write_text(json.dumps(proof, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise InvalidRuntime(
                f"{arguments.out} cannot be written: {error.strerror or error}; pass another path"
            ) from error
    clean, unclean = (
        [one for one in proof["places"] if one["clean"] is is_clean] for is_clean in (True, False)
    )
    lines = [f"clean: {_name(one)}: {one['evidence']}" for one in clean]
    lines += [f"not clean: {_name(one)}: {one['why']}" for one in unclean]
    lines.append(
        f"takedown {proof['takedown']}: {proof['result']}, {len(clean) + len(unclean)} places: {len(clean)} clean, "
        f"{len(unclean)} not clean"
    )
    return proof, lines_text(lines), 0 if proof["result"] == "complete" else 1


def _name(place: Mapping[str, Any]) -> str:
    return f"{place['what']} {place.get('path') or place.get('url', '')}".rstrip()


VERB = Verb(
    text="delete samples everywhere, and prove it",
    verbs={"request": request, "ls": ls, "run": run, "prove": prove},
)
