"""Facts of a run for its trackers: plan, versions, code, and where trail and checkpoints are."""

import os
from dataclasses import dataclass
from urllib.parse import quote

from loader.dataset.root import Root
from loader.order.plan import Plan
from loader.redaction import redact
from loader.run.recipe.recipe import stored_view
from loader.storage.mirror import primary_store

from ...checkpoints import marker
from ..code.code_files import commit


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedVersion:
    """A version that a plan reads."""

    source: str
    """Name of the source in the plan."""
    dataset: str
    """Name of the dataset."""
    name: str
    """Name, such as photos@3."""
    id: str
    """Version id: "v-" and 64 hex digits."""
    url: str
    """URL of its root, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a run that a tracker stores beside the metrics."""

    run: str
    """Name of the run."""
    plan: str
    """Hash of the plan."""
    versions: tuple[TrackedVersion, ...]
    """Versions that the plan reads, one per source."""
    code: str
    """Commit of the script's repository, with -dirty if files differ; "" without git."""
    trail: str
    """URL of the trail's page in the viewer, else of its folder; "" without a record."""
    checkpoints: str
    """URL of the checkpoints; "" without."""

    def tags(self) -> dict[str, str]:
        """Return name -> text, named as `loader.report` does."""
        tags = {
            "penstock.run": self.run,
            "penstock.plan": self.plan,
            "penstock.code": self.code,
            "penstock.trail": self.trail,
            "penstock.checkpoints": self.checkpoints,
        }
        tags |= {f"penstock.version.{one.source}": f"{one.name} {one.id}" for one in self.versions}
        return {name: text for name, text in tags.items() if text}


def collect_facts(run: str, plan: Plan, record: str | None, checkpoints: str | None) -> RunFacts:
    """Return the facts of a run. record, checkpoints: their roots."""
    return RunFacts(
        run=run,
        plan=plan.hash,
        versions=plan_versions(plan),
        code=commit(),
        trail="" if record is None else _trail(record, run),
        checkpoints="" if checkpoints is None else f"{_url(checkpoints)}/checkpoints/{run}/",
    )


def plan_versions(plan: Plan) -> tuple[TrackedVersion, ...]:
    """Return the versions that a plan reads, each source once."""
    versions = {}
    for planned in plan.sources.values():
        view = stored_view(planned.view)
        if view is not None:
            versions[planned.source] = TrackedVersion(
                source=planned.source,
                dataset=view.version.dataset,
                name=view.version.name,
                id=view.version.id,
                url=primary_store(view.version.store).url,
            )
    return tuple(versions.values())


def newest_checkpoint(checkpoints: str | None, run: str) -> str:
    """Return the URL of the newest complete checkpoint's marker, or "". Raises: StoreError."""
    if checkpoints is None:
        return ""
    steps = marker.steps(primary_store(Root(checkpoints).store), run)
    if steps:
        return f"{_url(checkpoints)}/{marker.marker_key(run, steps[-1])}"
    return ""


def _trail(record: str, run: str) -> str:
    viewer = redact(os.environ.get("PENSTOCK_VIEW_URL", "")).rstrip("/")
    if viewer:
        return f"{viewer}/r/{quote(run, safe='')}"
    return f"{_url(record)}/trails/{run}/"


def _url(root: str) -> str:
    return primary_store(Root(root).store).url
