"""Follow a dataset during training: at chosen steps, continue under the newest versions.

    follows/<run>/<step, 19 digits>.json     the plan from this step on, created once, by the first rank there

All ranks and restarts read it.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from ..dataset.log.entries import DAMAGED
from ..dataset.root import Root
from ..dataset.versions.version import Version, View
from ..errors import (
    AlreadyExists,
    Corrupt,
    InvalidRuntime,
    ObjectNotFound,
    PenstockError,
    PlanMismatch,
    Throttled,
    Transient,
)
from ..json_text import parse_json_object
from ..keywords import whole_number
from ..order.plan import Plan
from ..order.sources.bucket import BucketBy
from ..order.sources.window_view import WindowView
from ..run.batch.batch import Batch
from .plans import open_plan
from .report import check_run
from .successive_loaders import SuccessiveLoaders

_FORMAT = 1
_log = logging.getLogger(__name__)


def follow(
    root: Root,
    plan: Plan,
    *,
    run: str,
    every: int,
    refs: Mapping[str, str] | None = None,
    bucket_by: BucketBy | str | None = None,
    **options: Any,
) -> "Following":
    """Return a `Loader` that adopts the newest versions before each step divisible by `every`.

    The first rank at a boundary decides for all ranks (`follows/<run>/`), and the plan is saved. A version that cannot
    continue the plan (rewritten parts, or a packed source) is skipped with a warning. Each boundary costs one request
    per rank. Adopting a newer version also costs opening it and one `Plan.grow`.

    Args:
        root: Root of the versions. The job needs write access.
        plan: Plan to start with.
        run: Name of the training run. Restarts share it; no other training run may have it.
        every: Steps between two checks for a newer version, 1 or more.
        refs: Source -> ref to follow: `photos@latest` or an alias. None follows each dataset's latest version.
        bucket_by: Buckets, as `Plan.grow` needs them for new buckets.
        **options: Arguments of `Loader` (rank, world_size, decode, steps ...), except epochs: their length changes with
            the data.

    Raises: InvalidRuntime; InvalidName if the run's name is invalid; PlanMismatch if the run started with another plan.
    """
    return Following(root, plan, run=run, every=every, refs=refs, bucket_by=bucket_by, options=options)


class Following(SuccessiveLoaders):
    """Batches of a run that adopts newer versions. Iterates as a `Loader`."""

    def __init__(
        self,
        root: Root,
        plan: Plan,
        *,
        run: str,
        every: int,
        refs: Mapping[str, str] | None,
        bucket_by: BucketBy | str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._every = whole_number("every", every, 1)
        super().__init__(options, root)
        assert self._own_root is not None  # SuccessiveLoaders opens it from `root`
        self._root = self._own_root
        if unknown := sorted(set(refs or {}) - {one.source for one in plan.sources.values()}):
            raise InvalidRuntime(f"refs names {unknown}, which the plan does not have as sources")
        self._run = check_run(run)
        self._refs = refs
        self._bucket_by = bucket_by
        plan.save(root)
        self._switch_plan(plan, 0)
        self._decided: int | None = None  # the last boundary whose plan this rank has adopted

    def __next__(self) -> Batch:
        step = self.loader.step
        at_end = self.loader.end is not None and step >= self.loader.end
        # Once per boundary, even if the loader raised there and `next` is called again.
        if step and step % self._every == 0 and step != self._decided and not at_end:
            self._adopt_plan(self._grown_plan(step))
            self._decided = step
        return next(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state plus `follow`: the run and its plan's hash. Raises: as `Loader.state_dict`."""
        return {**self.loader.state_dict(), "follow": {"run": self._run, "plan": self.plan.hash}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state, under the versions that the run had adopted by that step.

        Also accepts the state of a plain `Loader` over this plan. Raises: PlanMismatch; InvalidPlan if its plan was
        deleted.
        """
        followed = None
        if isinstance(state, Mapping):
            followed = state.get("follow")
        if followed is not None and followed["plan"] != self.plan.hash:
            self._adopt_plan(open_plan(self._root, followed["plan"]))
        self.loader.load_state_dict(state)
        self._decided = None

    def _adopt_plan(self, plan: Plan) -> None:
        if plan.hash != self.plan.hash:
            self._switch_plan(plan, self.loader.step)

    def _grown_plan(self, step: int) -> Plan:
        """Return the plan from a boundary on: the first rank to come stores its choice, and the others adopt it."""
        key = f"follows/{self._run}/{step:019d}.json"
        stored = self._read(key)
        if stored is None:
            grown = self._grow(step)
            body = {"format": _FORMAT, "run": self._run, "step": step, "before": self.plan.hash}
            body_json = json.dumps({**body, "plan": grown.hash}, sort_keys=True).encode()
            try:
                self._root.store.put_if_absent(key, body_json)
            # Another rank was first: its plan is the run's.
            except AlreadyExists:
                stored = self._read(key)
            else:
                return grown
        if stored is None:
            where = f"{self._root.url}/{key}"
            raise Corrupt(
                f"{where} was deleted while this rank read it: restore it from a mirror, or start all ranks again",
                what="record of a followed run",
                where=where,
            )
        # `plan` too: a restart may already have it from its state.
        if self.plan.hash not in (stored["before"], stored["plan"]):
            raise PlanMismatch(
                f"run {self._run!r} went on at step {step} from another plan than {self.plan.hash} "
                f"({self._root.url}/{key}): give a training that is another one a name of its own",
                what="plan",
                where=f"run {self._run!r}, step {step}",
                given=self.plan.hash,
            )
        if stored["plan"] == self.plan.hash:
            return self.plan
        return open_plan(self._root, stored["plan"])

    def _read(self, key: str) -> dict[str, str] | None:
        """Return the plans before and after a boundary, or None if it has no record. Raises: Corrupt."""
        try:
            body: dict[str, str] = parse_json_object(self._root.store.get(key).data)
            return {name: body[name] for name in ("before", "plan")}
        except ObjectNotFound:
            return None
        except DAMAGED as error:
            raise Corrupt(
                f"{self._root.url}/{key} is not a record of a followed run ({error}); restore it from a mirror"
            ) from error

    def _grow(self, step: int) -> Plan:
        """Return the plan over the newest versions from a step on, saved; the same plan if none is newer."""
        plan = self.plan
        for source, view in _newest_views(plan).items():
            ref = (self._refs or {}).get(source, f"{view.version.dataset}@latest")
            try:
                if (version := self._newer_version(ref, view.version)) is not None:
                    plan = plan.grow({source: version}, step, bucket_by=self._bucket_by)
            # The choice is stored for good: an outage must not decide it. `next` may be called again.
            except (Throttled, Transient):
                raise
            # A training must not end because a new version cannot continue its plan.
            except PenstockError as error:
                _log.warning("run %r stays with %s at step %d: %s", self._run, view.version.name, step, error)
        plan.save(self._root)
        return plan

    def _newer_version(self, ref: str, now: Version) -> Version | None:
        """Return the version that a ref names, or None if it is not newer."""
        record = self._root.record(ref)
        if record.number > now.number:
            return self._root.open(record.id)
        return None


def _newest_views(plan: Plan) -> dict[str, View]:
    """Return source -> the view of its newest version in a plan, which may have grown several times."""
    newest: dict[str, tuple[int, View]] = {}  # source -> (number of its growth, view)
    for plan_source in plan.sources.values():
        if isinstance(plan_source.view, WindowView):
            view = plan_source.view.episodes
        else:
            view = plan_source.view
        if (
            isinstance(view, View)
            and not plan_source.delta
            and plan_source.growth >= newest.get(plan_source.source, (0,))[0]
        ):
            newest[plan_source.source] = plan_source.growth, view
    return {source: view for source, (_, view) in newest.items()}
