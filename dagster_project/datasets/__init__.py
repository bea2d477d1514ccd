"""The datasets of this repository: one file each, and one line in this registry. Others: `own_datasets`."""

from importlib import import_module

from assets.spec import DatasetSpec

DATASETS = {
    "demo": "dagster_project.datasets.demo:SPEC",
}


def specs() -> list[DatasetSpec]:
    """Return every registered dataset. Raises: ImportError, AttributeError for a line that names nothing."""
    found = []
    for target in DATASETS.values():
        module, _, attribute = target.partition(":")
        found.append(getattr(import_module(module), attribute))
    return found
