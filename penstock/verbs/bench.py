"""`penstock bench REF`."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

import loader

from ..units import number, share
from .table import Table
from .verb import Answer, Verb, add_fields, choose_fields

if TYPE_CHECKING:
    from ..bench import Bench, Rate

FORM = ("{:<12}", " {:>10}", " {:>12}", " {:>10}", " {:>8}")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    add_fields(parser)
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="samples in a batch (default: 64)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long (default: 10)")
    parser.add_argument(
        "--workers", type=int, default=None, metavar="N", help="threads (default: one per core)"
    )
    parser.add_argument(
        "--verify",
        choices=("crc32c", "sha256"),
        default="crc32c",
        help="what samples are held against, as loader.Root(verify=) (default: crc32c)",
    )


def run(arguments: Namespace) -> Answer:
    """Measure how fast a version can be loaded here, and what limits."""
    from ..bench import bench as measure

    version = loader.Root(arguments.root, verify=arguments.verify).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    found = measure(
        version,
        fields,
        where_present=where_present,
        batch=arguments.batch,
        seconds=arguments.seconds,
        workers=arguments.workers,
    )
    return found.to_json(), _text(found), 0


def _text(found: "Bench") -> list[str | Table]:
    """Return a table of stages, one thread and all, and the verdict."""
    whole = sum(rate.seconds for rate in found.stages.values())
    rows = [(*_cells(name, rate), share(rate.seconds, whole)) for name, rate in found.stages.items()]
    alone = [_cells("one thread", found.alone)]
    if found.workers:
        alone.append(_cells(f"{found.workers} workers", found.together))
    return [
        f"{found.version}: {', '.join(found.fields)} of {number(found.n_samples)} samples, shuffled batches of "
        f"{found.batch}",
        "",
        Table(form=FORM, header=("", "ms/batch", "samples/s", "MB/s", "share"), rows=[*rows, *alone]),
        "",
        f"samples of a disk are read by: {found.native}",
        f"limited by: {found.limited_by or 'nothing that was measured'}",
        *(f"  {one}" for one in found.advice),
    ]


def _cells(name: str, rate: "Rate") -> tuple[str, ...]:
    rates = [rate.samples_per_second, rate.bytes_per_second and rate.bytes_per_second / 1e6]
    return (name, f"{1e3 * rate.seconds:.3f}", *("-" if one is None else f"{one:,.0f}" for one in rates))


VERB = Verb(
    text="how fast a version can be loaded here, which stage limits, what to change",
    run=run,
    arguments=arguments,
)
