"""`penstock view|tui`: training runs and versions in a browser or a terminal."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime, MissingDependency, NotRecorded

from .verb import Answer, argument, flag, list_option, verb

if TYPE_CHECKING:
    from loader.dataset.log.state import VersionRecord

    from ..view.replays.metrics_file import MetricsFile
    from ..view.replays.recipe_process import RecipeProcess
    from ..view.terminal.addresses import PageAddress


RECIPE = argument(
    "--recipe train:recipe",
    "function that returns the training's decode and transform, or a plan's datasets; runs in another process",
)
METRICS = argument(
    "--metrics FILE",
    "CSV, JSON lines or Parquet with a column step: metrics of the run, and its digest",
    type=Path,
)
_RAW = argument("--raw URL", "location below which the viewer may fetch and show raw objects", default="")
_WHERE = (
    argument(
        "where", "version such as photos@3, run, run@step, plan hash or state file", nargs="?", default=""
    ),
    argument("--step", "step to begin with", type=int),
    RECIPE,
    METRICS,
)


@contextmanager
def recipe_process(
    root: "loader.Root", recipe: str | None, **options: Any
) -> "Iterator[RecipeProcess | None]":
    """Provide the process of --recipe; None without the option. options: of `RecipeProcess`."""
    from ..view.replays.recipe_process import RecipeProcess

    if recipe is None:
        yield None
        return
    with closing(RecipeProcess(root, recipe, **options)) as process:
        yield process


def read_metrics(root: "loader.Root", name: str, path: Path | None) -> "dict[str, MetricsFile]":
    """Return run -> metrics; empty without `path`. Raises: InvalidRuntime if `name` names no run."""
    from ..view.replays.metrics_file import read_metrics
    from ..view.replays.training import resolve_run_step

    if path is None:
        return {}
    if not name or name.partition("@")[0] in root.datasets():
        message = f"--metrics {path} needs a run: name the run, run@step or plan hash"
        raise InvalidRuntime(message, what="run of --metrics", where=path, given=name)
    return {resolve_run_step(root, name)[0]: read_metrics(path)}


@verb(
    "view trainings and versions in a browser",
    *_WHERE,
    argument("--port", "port of this machine; 0 finds a free one (default: 8497)", type=int, default=8497),
    argument("--socket PATH", "Unix socket instead of a port", type=Path),
    argument("--host", "address to listen at (default: 127.0.0.1)", default="127.0.0.1"),
    list_option("--allow-host NAME", "further host name of this server, such as a proxy's"),
    argument("--prefix /p", "path before every address, behind a proxy", default=""),
    argument("--ui URL", "Dagster's webserver, for links to runs", default=""),
    _RAW,
    flag("--allow-writes", "let the page exclude samples"),
)
def run_view(arguments: Namespace) -> Answer:
    """Serve until Ctrl-C. Raises: MissingDependency."""
    from ..view.web.serve import check_packages, serve

    check_packages()
    from ..view.raw_source import RawSource

    root = loader.Root(arguments.root)
    serve(
        root,
        first=_first(root, arguments.where, arguments.step),
        recipe=arguments.recipe,
        host=arguments.host,
        port=arguments.port,
        unix_socket=arguments.socket,
        prefix=arguments.prefix,
        allow_hosts=arguments.allow_host,
        ui=arguments.ui,
        metrics=read_metrics(root, arguments.where, arguments.metrics),
        raw=RawSource(root, arguments.raw) if arguments.raw else None,
        writes=arguments.allow_writes,
        announce=lambda line: print(line, flush=True),
    )
    return {}, "", 0


def _first(root: "loader.Root", name: str, step: int | None) -> str:
    from ..view.page_address import address

    version, run, step = parse_where(root, name, step)
    if version is not None:
        return address("v", version.dataset, version.number)
    if not run:
        return ""
    if step is None:
        return address("r", run)
    return address("r", run, step)


def parse_where(
    root: "loader.Root", name: str, step: int | None
) -> "tuple[VersionRecord | None, str, int | None]":
    """Return the version that WHERE names, or its run and step; neither for "".

    Raises: NotARoot; RunNotFound; InvalidRuntime.
    """
    from ..view.replays.training import resolve_run_step

    datasets = root.datasets()
    if not name:
        return None, "", None
    dataset, at, _ = name.partition("@")
    # Datasets win over runs of the same name; --step asks for the run.
    if step is None and dataset in datasets:
        return root.record(name if at else f"{name}@latest", retired=True), "", None
    run, recorded = resolve_run_step(root, name)
    step = recorded if step is None else step
    if step is not None and step < 0:
        raise InvalidRuntime(f"--step {step}: steps count from 0")
    # A run with a trail exists. Others are looked up now, so that a wrong name fails before the server starts.
    if not _has_trail(root, run):
        with suppress(NotRecorded):  # the run has several plans: the step's page finds the right one
            loader.plan_of(root, run, step)
    return None, run, step


def _has_trail(root: "loader.Root", run: str) -> bool:
    from loader.run.trail.trail import check_run_name, trail_folder
    from loader.storage.mirror import primary_store

    files = primary_store(root.store).list(trail_folder(check_run_name(run)))
    return next(iter(files), None) is not None


PICTURES = ("auto", "kitty", "sixel", "halves", "shades", "none")


@verb(
    "view trainings and versions in a terminal",
    *_WHERE,
    _RAW,
    argument(
        "--pictures",
        "kitty or sixel: the terminal's own; halves: two pixels a cell; shades: without colours (default: auto)",
        choices=PICTURES,
        default="auto",
    ),
)
def run_tui(arguments: Namespace) -> Answer:
    """Show the viewer until `q`. Raises: InvalidRuntime without a terminal; MissingDependency."""
    # The viewer reads keys and draws by escape sequences, so neither end may be a file or a pipe.
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRuntime("penstock tui needs a terminal; `penstock batch` gives a step as text or JSON")
    try:
        import textual_image  # noqa: F401 - the image widgets import it later

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
    metrics = read_metrics(root, arguments.where, arguments.metrics)
    raw = None
    if arguments.raw:
        raw = RawSource(root, arguments.raw)
    data = OpenData(root, arguments.recipe, quiet=True, metrics=metrics, raw=raw)
    try:
        app = ViewerApp(data, first_place(root, arguments.where, arguments.step), arguments.pictures)
        # After the arguments were checked: the recipe's process takes seconds to start.
        data.start()
        app.run()
    finally:
        data.close()
    return {}, "", 0


def first_place(root: "loader.Root", name: str, step: int | None) -> "PageAddress":
    from ..view.terminal.addresses import RootPage, RunPage, StepPage, VersionPage

    version, run, step = parse_where(root, name, step)
    if version is not None:
        return VersionPage(dataset=version.dataset, number=version.number)
    if not run:
        return RootPage()
    if step is None:
        return RunPage(run=run)
    return StepPage(run=run, step=step)
