"""`penstock slice save|ls|show|diff|rm`: named samples, to train on, to weigh or to leave out."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from ..text import lines_text
from ..units import second
from .search import LASSO, LIKE, NARROWED, WORDS, parse_like
from .verb import Answer, Table, Verb, argument, exclusive_options, key_lines, verb

if TYPE_CHECKING:
    from loader.dataset.slices import Samples
    from loader.dataset.tables.slice_record import SliceRecord

_SLICE = argument("slice DATASET/NAME", "e.g. photos/cups")
_BY = argument("--by", "who decides it", required=True)
_WHY = argument("--why", "reason; others will read it", required=True)
_SHOWN = 20
"""Most keys in plain text; --json has all."""
FORM = ("{:<28}", " {:>4}", "  {:<4}", " {:>9}", "  {:<12}", "  {:<19}", "  {}")
HEADER = ("slice", "n", "kind", "samples", "by", "saved (UTC)", "why")


@verb(
    "name samples of a version: listed keys, or a rule that grows with versions",
    argument("ref", "version with the samples, e.g. photos@7"),
    argument("name", "name of the slice, e.g. cups"),
    WORDS,
    exclusive_options(
        argument(
            "--where SQL",
            "save a rule: the samples that match, in any version; with words or another option a list",
        ),
        argument("--from FILE", "save a list: a file with a key per line; - is standard input", dest="file"),
    ),
    *LIKE,
    argument("--k N", "with --like: number of the most similar samples, up to 10,000", type=int),
    *NARROWED,
    LASSO,
    _BY,
    _WHY,
    argument("--page URL", "page on which the samples were chosen", default=""),
)
def save(arguments: Namespace) -> Answer:
    root = loader.Root(arguments.root)
    record = root.save_slice(
        arguments.ref,
        arguments.name,
        _samples(root, arguments),
        by=arguments.by,
        why=arguments.why,
        page=arguments.page,
    )
    text = f"{record.full_name} number {record.n}: {record.n_samples} samples of {record.version} ({record.path})"
    return record.to_json(), text, 0


def _samples(root: "loader.Root", arguments: Namespace) -> "Samples":
    """Return the SQL of a rule, the keys of a file, or the ordinals that words and options select."""
    is_searched = arguments.words is not None or arguments.like or arguments.k is not None
    is_narrowed = arguments.within or arguments.without or arguments.lasso is not None
    if arguments.file is not None:
        if is_searched or is_narrowed:
            raise InvalidRuntime("--from lists all keys: leave out words, --like, --in, --not and --lasso")
        return list(key_lines("--from", arguments.file))
    if is_searched or is_narrowed:
        return _search(root, arguments)
    if arguments.where is None:
        raise InvalidRuntime(
            "a slice needs samples: pass words, or --where SQL, or --from FILE with keys, or --like, --in, --not or "
            "--lasso"
        )
    where: str = arguments.where
    return where


def _search(root: "loader.Root", arguments: Namespace) -> "Samples":
    from loader.dataset.versions.sample_search import search_ordinals

    from ..search.sample_filter import filter_members

    version = root.open(arguments.ref)
    like = parse_like(root, version, arguments)
    # --like ranks every sample, so only --k ends its list; without a ranking there is no first N.
    if (like is None) != (arguments.k is None):
        raise InvalidRuntime("--like ranks all samples, and --k N saves the first N: pass both")
    return search_ordinals(
        version,
        arguments.words,
        like=like,
        k=arguments.k,
        where=arguments.where,
        members=filter_members(
            version,
            arguments.within,
            arguments.without,
            arguments.lasso,
        ),
    )


@verb("list slices, their sizes and authors", argument("dataset", "only of this dataset", nargs="?"))
def ls(arguments: Namespace) -> Answer:
    """Exit with 1 if a record is damaged."""
    from loader.dataset.slices import list_slices

    root = loader.Root(arguments.root)
    dataset = arguments.dataset
    if dataset is not None:
        dataset = root.record(dataset, retired=True).dataset
    listing = list_slices(root, dataset)
    body = {
        "slices": [record.to_json() for record in listing.slices],
        "damaged": listing.damaged,
    }
    rows = [_row(record) for record in listing.slices]
    lines: list[str | Table] = ["no slices"]
    if rows:
        lines = [Table(form=FORM, header=HEADER, rows=rows)]
    for path, problem in sorted(listing.damaged.items()):
        lines.append(lines_text([f"{path}: {problem}"]))
    exit_status = int(bool(listing.damaged))
    return body, lines, exit_status


def _row(record: "SliceRecord") -> list[object]:
    return [
        record.full_name,
        record.n,
        record.kind,
        record.n_samples,
        record.by,
        second(record.at_us),
        record.why,
    ]


@verb(
    "show a slice, and which of its samples a version lacks",
    _SLICE,
    argument("--n N", "number of the slice (default: the newest)", type=int),
    argument("--in REF", "version to look in (default: the newest)", dest="ref", default=""),
)
def show(arguments: Namespace) -> Answer:
    from loader.dataset.slices import show_slice

    dataset, name = _names(arguments.slice)
    shown = show_slice(
        loader.Root(arguments.root),
        dataset,
        name,
        arguments.n,
        ref=arguments.ref,
    )
    record = shown.record
    body = {
        **record.to_json(),
        "numbers": list(shown.numbers),
        "in": shown.version,
        "n_in": shown.n_samples,
        "gone": list(shown.missing),
    }
    samples = record.where
    if record.kind == "list":
        samples = f"{record.n_samples} listed samples"
    lines = [
        f"{record.full_name} number {record.n} of {', '.join(map(str, shown.numbers))}",
        f"{record.kind}: {samples}",
        f"saved from {record.version} by {record.by} at {second(record.at_us)}: {record.why}",
    ]
    if record.page:
        lines.append(record.page)
    if record.removed:
        # A removal is a record of its own, whose `by` and `why` are the remover's.
        lines[2] = f"removed by {record.by} at {second(record.at_us)}: {record.why}"
    lines.append(f"{shown.version} has {shown.n_samples} of them, {len(shown.missing)} are gone")
    lines += _key_lines("gone", shown.missing)
    return body, lines_text(lines), 0


@verb(
    "compare two numbers of a slice in the newest version",
    _SLICE,
    argument("numbers N", "two numbers (default: the last two)", nargs="*", type=int),
)
def diff(arguments: Namespace) -> Answer:
    from loader.dataset.slices import diff_slices

    dataset, name = _names(arguments.slice)
    numbers = arguments.numbers
    if len(numbers) not in (0, 2):
        raise InvalidRuntime(f"{len(numbers)} numbers are given: pass two, or none for the last two")
    difference = diff_slices(loader.Root(arguments.root), dataset, name, *numbers)
    body = {
        "dataset": dataset,
        "name": name,
        "before": difference.before,
        "after": difference.after,
        "in": difference.version,
        "added": list(difference.added),
        "removed": list(difference.removed),
    }
    lines = [
        f"{dataset}/{name} {difference.before} -> {difference.after} in {difference.version}: "
        f"{len(difference.added)} samples added, {len(difference.removed)} removed",
        *_key_lines("added", difference.added),
        *_key_lines("removed", difference.removed),
    ]
    return body, lines_text(lines), 0


@verb("end a slice; plans with it stay as they are", _SLICE, _BY, _WHY)
def rm(arguments: Namespace) -> Answer:
    from loader.dataset.slices import remove_slice

    dataset, name = _names(arguments.slice)
    record = remove_slice(
        loader.Root(arguments.root),
        dataset,
        name,
        by=arguments.by,
        why=arguments.why,
    )
    text = f"{record.full_name} is removed ({record.path}); its numbers stay: version.slice({name!r}, n=N)"
    return record.to_json(), text, 0


def _names(text: str) -> tuple[str, str]:
    """Return dataset and name. Raises: InvalidRuntime."""
    dataset, slash, name = text.partition("/")
    if not slash:
        raise InvalidRuntime(f"{text!r} is not a slice: write DATASET/NAME, such as photos/cups")
    return dataset, name


def _key_lines(what: str, keys: Any) -> list[str]:
    lines = [f"  {what:<8} {key}" for key in keys[:_SHOWN]]
    if len(keys) > _SHOWN:
        lines.append(f"  ... {len(keys) - _SHOWN} more; --json lists all")
    return lines


VERB = Verb(
    text="name samples, to train on them or to leave them out",
    verbs={
        "save": save,
        "ls": ls,
        "show": show,
        "diff": diff,
        "rm": rm,
    },
)
