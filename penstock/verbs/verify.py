"""`penstock verify REF`."""

from argparse import ArgumentParser, Namespace

import loader

from .. import verify as _verify
from ..words import size
from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """What it takes."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--full", action="store_true", help="read every byte")


def run(arguments: Namespace) -> Answer:
    """Exit status 1 when anything is wrong."""
    report = _verify.verify(loader.Root(arguments.root), arguments.ref, full=arguments.full)
    problems = report.problems or []
    how = "every byte" if report.full else "tables, sizes and indexes (--full reads every byte)"
    lines = [f"{problem.address}: {problem.what}" for problem in problems]
    lines.append(
        f"{report.version}: {report.shards} shards, {report.rows} rows, {size(report.nbytes)}; checked {how}: "
        + (f"{len(problems)} problems" if problems else "nothing wrong")
    )
    return report.to_json(), "\n".join(lines), 1 if problems else 0


VERB = Verb(text="check stored hashes, counts and references", run=run, arguments=arguments)
