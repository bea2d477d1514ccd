"""Register a checkpoint as a version of a model in MLflow, with the plan and the versions that it was trained on."""

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from loader.dataset.root import Root
from loader.errors import InvalidRuntime, MissingDependency
from loader.storage.mirror.store import primary_of
from loader.storage.spec import redact

from ...checkpoints import marker
from .mlflow_run import run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """A version of a registered model."""

    model: str
    """Name of the model."""
    version: str
    """Number of the version, as MLflow's text."""
    source: str
    """URL of the checkpoint's marker."""
    tags: dict[str, str]
    """Run, step, plan and versions of the data."""
    is_new: bool
    """False if it was registered before."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def register(root: Root, run: str, step: int, model: str) -> ModelVersion:
    """Return the model version of a checkpoint; make it, and the model, if they are not there.

    Raises: CheckpointNotFound; Corrupt; MissingDependency; InvalidRuntime, with MLflow's error.
    """
    store = primary_of(root.store)
    checkpoint = marker.read(store, run, step)
    source = f"{store.url}/{marker.marker_key(run, step)}"
    tags = {"penstock.run": run, "penstock.step": str(step)}
    if checkpoint.plan is not None:
        tags["penstock.plan"] = checkpoint.plan
    for version in checkpoint.versions:
        tags[f"penstock.version.{version['source']}"] = f"{version['name']} {version['id']}"
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise MissingDependency(
            "checkpoints register needs MLflow: pip install 'penstock-data[mlflow]'"
        ) from error
    client = MlflowClient()
    try:
        with suppress(MlflowException):  # it exists
            client.create_registered_model(model)
        versions = client.search_model_versions(f"name = '{model}'")
        known = [version for version in versions if version.source == source]
        result = (
            known[0]
            if known
            else client.create_model_version(model, source, run_id=run_id(client, run) or None, tags=tags)
        )
    except MlflowException as error:
        raise InvalidRuntime(
            f"MLflow did not register {source} as {model!r}: {redact(str(error))}; check the name, and "
            "MLFLOW_TRACKING_URI"
        ) from error
    return ModelVersion(
        model=model,
        version=str(result.version),
        source=source,
        tags=dict(result.tags),
        is_new=not known,
    )
