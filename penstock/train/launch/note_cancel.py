"""Store that a person cancelled a run's job, so that a start after it makes no step. Called by a batch script.

Arguments: record, run.
"""

import sys

import loader

from ..run_folder import RunFolder


def main() -> None:
    """Store the request to stop, unless `penstock train cancel` or `stop` stored one."""
    record, run = sys.argv[1:]
    folder = RunFolder(loader.Root(record).store, run)
    if not folder.is_to_stop():
        folder.ask_to_stop("scancel")


if __name__ == "__main__":
    main()
