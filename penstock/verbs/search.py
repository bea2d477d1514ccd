"""`penstock search|index`: samples like others, samples with words, and the index that makes both fast."""

from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import FieldMismatch, InvalidRuntime

from ..text import lines_text
from ..units import size
from .verb import REF, Answer, Table, argument, flag, list_option, verb

if TYPE_CHECKING:
    import numpy as np

    from ..search.index_build import FieldIndex
    from ..search.map.stored_map import MapReport

FORM = ("{:>9}", "  {:>8}", "  {}")
HEADER = ("ordinal", "score", "key")
_MOST_VECTOR_BYTES = 2**20
"""Most bytes of a file with a vector: 65,536 float64 have half of it."""
WORDS = argument("words WORDS", 'words, "phrases" and -words, e.g. "red cup -empty"', nargs="?")
LIKE = (
    list_option(
        "--like KEY,...|FILE.npy|RUN@STEP",
        "samples, a vector, or the worst sample of a step of a training",
    ),
    argument("--slot N", "with RUN@STEP: slot of the global batch (default: the worst)", type=int),
)
NARROWED = (
    list_option("--in SLICE", "only samples of a slice", dest="within"),
    list_option("--not SLICE", "no sample of a slice", dest="without"),
)
LASSO = argument(
    "--lasso X,Y;X,Y;...",
    "only samples inside a polygon of 3 to 64 corners on the map (penstock index --map)",
)


@verb(
    "search a version: samples like another, or samples whose texts have these words",
    REF,
    WORDS,
    *LIKE,
    argument("--text TEXT", "what the samples show; needs --weights of the network that embedded them"),
    argument("--weights DIR", "with --text: weights of the featurizer `embedding`"),
    argument(
        "--network NAME", "with --text: as in the featurizer (default: transformers)", default="transformers"
    ),
    argument("--where SQL", "only samples for which an expression over the columns is true"),
    *NARROWED,
    LASSO,
    argument("--field F", "field to compare or to search (default: the embedding; all texts)"),
    argument("--k N", "most samples to return, up to 10,000 (default: 60)", type=int, default=60),
    argument("--cache DIR", "folder on a local disk for the index, shared by processes"),
    flag("--keys", "print keys only, one a line, e.g. for penstock slice save --from -"),
)
def run_search(arguments: Namespace) -> Answer:
    from loader.dataset.versions.sample_search import search_samples

    from ..search.sample_filter import filter_members

    root = loader.Root(arguments.root)
    version = root.open(arguments.ref)
    has_query = arguments.words is not None or arguments.like or arguments.text is not None
    if not has_query and arguments.lasso is None:
        raise InvalidRuntime(
            "a search needs words, or --like with a key, a .npy file or RUN@STEP, or --text, or --lasso"
        )
    result = search_samples(
        version,
        arguments.words,
        like=_like(root, version, arguments),
        k=arguments.k,
        where=arguments.where,
        members=filter_members(
            version,
            arguments.within,
            arguments.without,
            arguments.lasso,
        ),
        field_name=arguments.field,
        cache=arguments.cache,
    )
    body = result.to_json()
    if result.damaged:
        body["damaged"] = result.damaged
    samples = body["found"]
    if arguments.keys:
        keys = [sample["key"] for sample in samples]
        return body, lines_text(keys), 0
    rows = []
    for sample in samples:
        score = ""
        if sample["score"] is not None:
            score = f"{sample['score']:.4f}"
        rows.append([sample["ordinal"], score, sample["key"]])
    compared = "compared"
    if not result.exact:
        compared = "compared by their codes"
    lines: list[str | Table] = [Table(form=FORM, header=HEADER, rows=rows)]
    lines.append(
        f"{len(samples)} of {result.n_matching:,} samples of {version.name}; {result.n_searched:,} {compared} "
        f"({result.field})"
    )
    for path, problem in sorted(result.damaged.items()):
        # `lines_text`, here of one line: a stored text must not begin another one.
        lines.append(lines_text([f"left out: {path}: {problem}"]))
    return body, lines, 0


def _like(
    root: "loader.Root",
    version: "loader.Version",
    arguments: Namespace,
) -> Any:
    """Return the keys or the vector of --like or --text; None without them. Raises: InvalidRuntime."""
    if arguments.text is not None:
        return _text_vector(version, arguments)
    if arguments.weights is not None:
        raise InvalidRuntime("--weights is of a text: pass --text with it")
    return parse_like(root, version, arguments)


def parse_like(
    root: "loader.Root",
    version: "loader.Version",
    arguments: Namespace,
) -> "list[str] | np.ndarray | None":
    """Return the keys or the vector of --like and --slot; None without them. version: the one that is searched.

    Raises: InvalidRuntime; FieldMismatch.
    """
    from loader.dataset.versions.sample_search import parse_keys

    if not arguments.like:
        if arguments.slot is not None:
            raise InvalidRuntime("--slot is of a step: pass --like RUN@STEP with it")
        return None
    likes = list(arguments.like)
    # A sample's key may end in .npy too, so only an existing file is a vector.
    if len(likes) == 1 and likes[0].endswith(".npy") and Path(likes[0]).is_file():
        return _vector(Path(likes[0]))
    keys = []
    n_steps = 0
    names: list[str] = []
    for like in likes:
        names += parse_keys(version, like)
    for like in names:
        step = _recorded_step(root, like)
        if step is None:
            keys.append(like)
            continue
        n_steps += 1
        keys.append(_worst_key(root, version.dataset, step, arguments.slot))
    if arguments.slot is not None and not n_steps:
        raise InvalidRuntime("--slot is of a step: pass --like RUN@STEP with it")
    return keys


def _text_vector(version: "loader.Version", arguments: Namespace) -> list[float]:
    """Return the embedding of --text, by the network that embedded the samples. Raises: InvalidRuntime."""
    from loader.dataset.search.index_record import similarity_field

    from ..search.text_query import text_query

    if arguments.like:
        raise InvalidRuntime("--text and --like are two queries: pass one of them")
    if arguments.weights is None:
        raise InvalidRuntime(
            "--text needs --weights DIR: the folder of the weights that embedded the samples"
        )
    field = similarity_field(version, arguments.field)
    return text_query(
        version,
        field,
        arguments.text,
        arguments.weights,
        arguments.network,
    )


def _vector(path: Path) -> "np.ndarray":
    """Return the array of a .npy file, of any shape. Raises: FieldMismatch."""
    import numpy as np

    try:
        if path.stat().st_size > _MOST_VECTOR_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        # allow_pickle=False: a file from a colleague must not run code.
        vector: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FieldMismatch(f"--like {path}: {error}; a .npy file with one vector is needed") from error
    # np.load returns an archive, not an array, for a .npz that was renamed.
    if not isinstance(vector, np.ndarray):
        raise FieldMismatch(f"--like {path} is no .npy file; a .npy file with one vector is needed")
    return vector


def _recorded_step(root: "loader.Root", like: str) -> tuple[str, int] | None:
    """Return the run and step of a run with a trail; None for a key."""
    from loader.run.trail.read_trail import trail_runs
    from loader.storage.mirror import primary_store

    from ..view.runs.highest_loss import parse_run_step

    step = parse_run_step(like)
    # A key may have the form RUN@STEP; only a run with a trail wins over it.
    if step is None or step[0] not in trail_runs(primary_store(root.store)):
        return None
    return step


def _worst_key(
    root: "loader.Root",
    dataset: str,
    at: tuple[str, int],
    slot: int | None,
) -> str:
    """Return the key of a slot of a step. at: (run, step). slot: None for the one with the highest loss."""
    from ..view.replays.training import Training
    from ..view.runs.highest_loss import worst_key

    run, step = at
    with closing(Training(root, run)) as training:
        return worst_key(
            training,
            step,
            dataset,
            slot,
        )


@verb(
    "index a version's embeddings and texts: only parts that have no index yet",
    REF,
    argument("--field F", "only this field (default: the embedding, and all texts)"),
    flag("--map", "lay the samples out on a map, too; with --drop: delete the map only"),
    flag("--drop", "delete the index of the field instead, for all versions of the dataset"),
)
def run_index(arguments: Namespace) -> Answer:
    """Exit with 1 if a segment is damaged."""
    from ..search.index_build import drop_index, make_index
    from ..search.map.stored_map import drop_map, make_map

    root = loader.Root(arguments.root)
    if arguments.drop and arguments.map:
        deleted = drop_map(root, arguments.ref, arguments.field)
        text = f"{len(deleted)} objects deleted; penstock index {arguments.ref} --map makes the map again"
        return {"deleted": deleted}, text, 0
    if arguments.drop:
        deleted = drop_index(root, arguments.ref, arguments.field)
        text = f"{len(deleted)} objects deleted; penstock index {arguments.ref} makes the index again"
        return {"deleted": deleted}, text, 0
    report = make_index(root, arguments.ref, arguments.field)
    lines = []
    for index in report.fields:
        lines += _index_lines(index)
    lines.append(f"{report.version} indexed in {report.seconds:.1f} s")
    is_damaged = any(index.damaged for index in report.fields)
    body = report.to_json()
    if arguments.map:
        placed = make_map(root, arguments.ref, arguments.field)
        body["map"] = placed.to_json()
        lines += _map_lines(placed)
        is_damaged = is_damaged or bool(placed.damaged)
    return body, lines_text(lines), int(is_damaged)


def _map_lines(placed: "MapReport") -> list[str]:
    lines = [
        f"map of {placed.field}: {placed.n_samples:,} samples, {placed.n_new:,} rows new, {placed.n_clusters} "
        f"clusters, {size(placed.nbytes)} ({placed.folder}) in {placed.seconds:.1f} s"
    ]
    lines += [f"  left out: {path}: {problem}" for path, problem in sorted(placed.damaged.items())]
    return lines


def _index_lines(index: "FieldIndex") -> list[str]:
    lines = [
        f"{index.field}: {index.n_samples:,} samples, {index.n_new:,} rows new, {index.n_segments} segments, "
        f"{size(index.nbytes)} ({index.folder})"
    ]
    lines += [f"  left out: {path}: {problem}" for path, problem in sorted(index.damaged.items())]
    return lines
