"""`penstock annotate REF NAME --from FILE --author WHO`."""

from argparse import ArgumentParser, Namespace

import loader

from ..progress import progress
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@latest")
    parser.add_argument("name", help="of the annotation, e.g. labels-v2")
    parser.add_argument(
        "--from", dest="rows", required=True, metavar="FILE", help=".parquet, .jsonl or .csv; path or URL"
    )
    parser.add_argument("--author", required=True, help="who says so, where a row has no annotated_by")
    parser.add_argument(
        "--key", default="key", metavar="COLUMN", help="the file's column of keys (default: key)"
    )
    parser.add_argument(
        "--on",
        default="key",
        metavar="COLUMN",
        help="the samples' column: key (default), source_key, raw_key, unit_id ...",
    )
    parser.add_argument("--columns", metavar="A,B", help="the file's columns to take (default: all others)")
    parser.add_argument(
        "--nulls", default="keep", choices=("keep", "remove"), help="what a null does to what is there"
    )
    parser.add_argument("--strict", action="store_true", help="refuse keys without a sample")
    parser.add_argument(
        "--last-wins", action="store_true", help="of rows with one key, instead of refusing them"
    )


def run(arguments: Namespace) -> Answer:
    """Annotate a version. Answers with the next version."""
    done = loader.Root(arguments.root).annotate(
        arguments.ref,
        arguments.name,
        arguments.rows,
        author=arguments.author,
        key=arguments.key,
        on=arguments.on,
        columns=arguments.columns.split(",") if arguments.columns else None,
        nulls=arguments.nulls,
        strict=arguments.strict,
        last_wins=arguments.last_wins,
        watch=progress,
    )
    join, version = done.join, done.version
    lines = [f"{version.name}  {version.id}", f"{join.n_samples} samples annotated from {join.n_rows} rows"]
    if join.n_overruled:
        lines.append(f"{join.n_overruled} rows were overruled by later ones of the same key")
    if join.n_unmatched:
        lines.append(f"{join.n_unmatched} keys have no live sample:")
        lines += [f"  {key!r} ({where})" for key, where in join.unmatched]
        lines += ["  ..."] if join.n_unmatched > len(join.unmatched) else []
    body = {
        "name": version.name,
        "id": version.id,
        "rows": join.n_rows,
        "samples": join.n_samples,
        "overruled": join.n_overruled,
        "unmatched": join.n_unmatched,
        "first_unmatched": [{"key": key, "at": where} for key, where in join.unmatched],
    }
    return body, "\n".join(lines), 0


VERB = Verb(text="labels from a file, joined to samples that are there", run=run, arguments=arguments)
