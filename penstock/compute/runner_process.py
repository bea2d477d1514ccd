"""Entry point of a runner's process.

python -m penstock.compute.runner_process --root URL --job ID --sha256 HEX --attempt 1 --element 0 --elements 4 --cpus
2
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

from loader.errors import Changed, CodeMismatch, Corrupt, InvalidRuntime, ObjectNotFound
from loader.storage import open_store

from .job import JobFolder
from .pool import Compute, LocalCompute
from .pool.environment import visible_gpus
from .runner import FAILED, REFUSED, Runner, RunnerName
from .work import find_work


def main(argv: Sequence[str] | None = None) -> int:
    """Run a runner in this process; return its exit status."""
    arguments = parser().parse_args(argv)
    folders = arguments.import_path.split(os.pathsep)
    sys.path += [folder for folder in folders if folder and folder not in sys.path]
    try:
        runner = open_runner(arguments, LocalCompute)
    except (Changed, CodeMismatch, Corrupt, InvalidRuntime, ObjectNotFound) as error:
        # ObjectNotFound: the job has ended and its folder is deleted
        print(f"penstock runner: {type(error).__name__}: {error}", file=sys.stderr)
        return REFUSED

    def stop(_: int, __: FrameType | None) -> None:
        threading.Thread(target=runner.tell_to_end).start()

    signal.signal(signal.SIGTERM, stop)
    if arguments.with_parent:
        threading.Thread(target=_end_with_parent, args=(runner,), daemon=True).start()
    try:
        return runner.run()
    except Exception:  # noqa: BLE001 - printed to the log that the engine keeps of this runner
        traceback.print_exc()
        return FAILED
    finally:
        runner.tell_to_end()


def open_runner(arguments: argparse.Namespace, compute: Callable[[int], Compute]) -> Runner:
    """Return the runner that the arguments describe. compute: makes a pool of that many workers.

    Raises: Changed if the description is not the submitter's; CodeMismatch; InvalidRuntime; ObjectNotFound.
    """
    store = open_store(arguments.root, json.loads(arguments.options))
    folder = JobFolder(store, arguments.job)
    description = folder.find_description(arguments.sha256)
    packages = arguments.packages.split(",")
    gpus = _gpus(arguments.gpus)
    workers = find_work(description.work, packages).resources.units_at_once(
        arguments.cpus, arguments.memory, len(gpus)
    )
    node = os.environ.get("PENSTOCK_NODE") or socket.gethostname()  # a pod's host name is not its node's
    name = RunnerName(
        attempt=arguments.attempt, element=arguments.element, elements=arguments.elements, node=node
    )
    return Runner(folder, description, name, compute(workers), packages, gpus)


def _gpus(n_gpus: int | None) -> Sequence[str]:
    """Return the GPUs of the slot. n_gpus: their number; None for all that this machine shows."""
    if n_gpus == 0:
        return ()
    visible = visible_gpus()
    if n_gpus is not None and len(visible) < n_gpus:
        raise InvalidRuntime(
            f"slot.gpus = {n_gpus}, and {socket.gethostname()} shows {len(visible)} GPUs: its engine gave fewer, or "
            "torch there is not built for CUDA",
            what="slot.gpus",
            where=socket.gethostname(),
            given=len(visible),
            accepted=n_gpus,
        )
    return visible[:n_gpus]


def parser() -> argparse.ArgumentParser:
    """Return a runner's argument parser."""
    top = argparse.ArgumentParser(prog="python -m penstock.compute.runner_process", description=__doc__)
    top.add_argument("--root", required=True, help="URL of the store with the job's folder")
    top.add_argument("--options", default="{}", help="options of that store, as JSON, without secrets")
    top.add_argument("--job", required=True, help="id of the job")
    top.add_argument(
        "--sha256", required=True, help="SHA-256 of the job's description, as its submitter vouches"
    )
    top.add_argument(
        "--attempt", type=int, required=True, help="attempt at the job that the runner belongs to"
    )
    top.add_argument("--element", type=int, required=True, help="number of this runner")
    top.add_argument("--elements", type=int, required=True, help="number of runners")
    top.add_argument("--cpus", type=int, required=True, help="processors of the slot")
    top.add_argument("--memory", type=int, default=0, help="bytes of memory of the slot; 0: unknown")
    top.add_argument("--gpus", type=int, help="GPUs of the slot; left out: all that the runner sees")
    top.add_argument("--packages", required=True, metavar="A,B", help="packages whose works may run")
    top.add_argument(
        "--import-path",
        default="",
        metavar="A:B",
        help="more folders of Python modules, behind this node's own",
    )
    top.add_argument("--with-parent", action="store_true", help="end once standard input ends")
    return top


def _end_with_parent(runner: Runner) -> None:
    while os.read(0, 1024):
        pass
    runner.tell_to_end()


if __name__ == "__main__":
    sys.exit(main())
