"""`penstock tui [WHERE]`: trainings and versions in a terminal."""

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

import loader
from loader.errors import InvalidRuntime, MissingDependency

from .verb import Answer, Verb
from .view import add_metrics, add_raw, add_recipe, metrics_of, named

if TYPE_CHECKING:
    from ..view.terminal.addresses import Place

PICTURES = ("auto", "kitty", "sixel", "halves", "shades", "none")


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "where",
        nargs="?",
        default="",
        help="version such as photos@3, run, run@step, plan hash or state file",
    )
    parser.add_argument("--step", type=int, default=None, help="step to begin with")
    add_recipe(parser)
    add_metrics(parser)
    add_raw(parser)
    parser.add_argument(
        "--pictures",
        choices=PICTURES,
        default="auto",
        help="kitty or sixel: the terminal's own; halves: two pixels a cell; shades: without colours (auto)",
    )


def run(arguments: Namespace) -> Answer:
    """Show pages until q. Raises: InvalidRuntime without a terminal; MissingDependency."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRuntime("penstock tui needs a terminal; `penstock batch` gives a step as text or JSON")
    try:
        import textual_image  # noqa: F401 - pictures import it later

        from ..view.terminal.viewer_app import ViewerApp
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        raise MissingDependency(
            f"the viewer in a terminal needs the package {package!r}, which is not installed: "
            "pip install 'penstock-data[tui]'"
        ) from error
    from ..view.open_data import OpenData
    from ..view.raw_source import RawSource

    root = loader.Root(arguments.root)
    metrics = metrics_of(root, arguments.where, arguments.metrics)
    raw = RawSource(root, arguments.raw) if arguments.raw else None
    data = OpenData(root, arguments.recipe, quiet=True, metrics=metrics, raw=raw)
    try:
        app = ViewerApp(data, first_place(root, arguments.where, arguments.step), arguments.pictures)
        data.start()
        app.run()
    finally:
        data.close()
    return {}, "", 0


def first_place(root: "loader.Root", given: str, step: int | None) -> "Place":
    """Return the first page."""
    from ..view.terminal.addresses import RootPlace, RunPlace, StepPlace, VersionPlace

    version, run, step = named(root, given, step)
    if version is not None:
        return VersionPlace(dataset=version.dataset, number=version.number)
    if not run:
        return RootPlace()
    return RunPlace(run=run) if step is None else StepPlace(run=run, step=step)


VERB = Verb(text="trainings and versions in a terminal", run=run, arguments=arguments)
