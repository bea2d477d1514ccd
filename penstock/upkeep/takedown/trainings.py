"""The runs and checkpoints that trained on a takedown's samples, found before the samples go.

The record names runs, steps and checkpoints, never a sample.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from loader import Root

from ...denied.find import Findings
from ...denied.keys_tables import keys_files, names_in
from ...denied.readable_versions import Whole, over_whole
from ...denied.record import Place

TrainedOn = Callable[[str, Collection[str]], Iterable[Mapping[str, Any]]]
"""Function from a dataset and keys of samples to runs: `run`, `samples`, `steps`, `checkpoints` and `error` of each."""


def trainings_on(root: Root, findings: Iterable[Findings], trained: TrainedOn) -> Iterator[Place]:
    """Yield an entry of the record per dataset and run."""
    for of in findings:
        keys = _keys(root, of) if of.rows else set()
        for run in trained(of.dataset, keys) if keys else ():
            steps = run["steps"]
            yield {
                "check": "trained",
                "what": f"run {run['run']}",
                "of": of.dataset,
                "run": run["run"],
                "samples": run["samples"],
                "first_step": min(steps, default=-1),
                "last_step": max(steps, default=-1),
                "checkpoints": list(run["checkpoints"]),
                "error": run["error"].partition(":")[0],  # a message might name a sample
            }


def newest_of(recorded: Sequence[Place], now: Sequence[Place]) -> list[dict[str, Any]]:
    """Return one entry per dataset and run: the one with most steps; an earlier one if the run is unknown by now."""
    newest: dict[tuple[str, str], Place] = {}
    for place in (*recorded, *now):
        name = (place["of"], place["run"])
        if name not in newest or place["last_step"] >= newest[name]["last_step"]:
            newest[name] = place
    names = ("run", "of", "samples", "first_step", "last_step", "checkpoints", "error")
    return [{name: newest[key][name] for name in names} for key in sorted(newest)]


def _keys(root: Root, of: Findings) -> set[str]:
    """Return the keys of the denied samples in all versions that can be read."""

    def keys_in(versions: Whole) -> set[str]:
        files = {file["path"]: file for _, version in versions for file in keys_files(version)}
        keys: set[str] = set()
        for file in files.values():
            table = names_in(root.store, file).select(["part", "row", "key"])
            columns = (column.to_pylist() for column in table.columns)
            keys.update(key for part, row, key in zip(*columns, strict=True) if row in of.rows.get(part, ()))
        return keys

    return over_whole(root, of.dataset, keys_in)
