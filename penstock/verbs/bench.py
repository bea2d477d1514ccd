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


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("ref", help="e.g. photos@3")
    add_fields(parser)
    parser.add_argument("--batch", type=int, default=64, metavar="N", help="samples in a batch (default: 64)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="seconds to measure (default: 10)"
    )
    parser.add_argument(
        "--workers", type=int, default=None, metavar="N", help="threads (default: one per core)"
    )
    parser.add_argument(
        "--verify",
        choices=("crc32c", "sha256"),
        default="crc32c",
        help="checksum to compare samples with, as in loader.Root(verify=) (default: crc32c)",
    )


def run(arguments: Namespace) -> Answer:
    """Measure how fast a version can be loaded here, and what limits."""
    from ..bench import bench as measure

    version = loader.Root(arguments.root, verify=arguments.verify).open(arguments.ref)
    fields, where_present = choose_fields(version, arguments.fields)
    result = measure(
        version,
        fields,
        where_present=where_present,
        batch=arguments.batch,
        seconds=arguments.seconds,
        workers=arguments.workers,
    )
    return result.to_json(), _text(result), 0


def _text(bench: "Bench") -> list[str | Table]:
    """Return a table of stages, one thread and all, and the verdict."""
    whole = sum(rate.seconds for rate in bench.stages.values())
    rows = [(*_cells(name, rate), share(rate.seconds, whole)) for name, rate in bench.stages.items()]
    alone = [_cells("one thread", bench.alone)]
    if bench.workers:
        alone.append(_cells(f"{bench.workers} workers", bench.together))
    return [
        f"{bench.version}: {', '.join(bench.fields)} of {number(bench.n_samples)} samples, shuffled batches of "
        f"{bench.batch}",
        "",
        Table(form=FORM, header=("", "ms/batch", "samples/s", "MB/s", "share"), rows=[*rows, *alone]),
        "",
        f"samples on disk are read by: {bench.native}",
        f"limited by: {bench.limited_by or 'nothing that was measured'}",
        *(f"  {one}" for one in bench.advice),
    ]


def _cells(name: str, rate: "Rate") -> tuple[str, ...]:
    rates = [rate.samples_per_second, rate.bytes_per_second and rate.bytes_per_second / 1e6]
    return (name, f"{1e3 * rate.seconds:.3f}", *("-" if one is None else f"{one:,.0f}" for one in rates))


VERB = Verb(
    text="measure how fast a version loads here, which stage limits, and what to change",
    run=run,
    arguments=_arguments,
)
