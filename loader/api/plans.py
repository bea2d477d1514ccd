"""Create plans over versions, save them under a root, and reopen them by hash."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..dataset.root import Root
from ..dataset.versions.version import Version, View
from ..errors import Corrupt, Denied, InvalidPlan, ObjectNotFound, PlanMismatch, VersionRetired
from ..json_text import DamagedJson, parse_json
from ..keywords import PLAN_WORDS, explains
from ..order.plan import Plan, make_plan
from ..order.planned_source import MixtureSource
from ..order.planned_source import source as _source
from ..order.sources.bucket import BucketBy, Number
from ..order.sources.packing import PackBy
from ..order.sources.quarantine import QuarantineKeys
from ..order.sources.views import ListedView, OrderView, SyntheticView, synthetic
from ..order.weights import GlobalBatch, Schedule, Weight

if TYPE_CHECKING:
    from ..dataset.shards.part import Part
    from ..dataset.versions.slice_members import SliceTerm
    from ..order.sources.packing import PackedView
    from ..order.sources.window_view import WindowView

Viewable: TypeAlias = "Version | View | ListedView | PackedView | WindowView | SyntheticView | MixtureSource"


@explains(PLAN_WORDS)
def plan(
    sources: Mapping[str, Viewable],
    *,
    seed: int,
    global_batch: GlobalBatch,
    bucket_by: BucketBy | str | None = None,
    pack: PackBy | None = None,
    schedule: Schedule | None = None,
    quarantine: QuarantineKeys | Sequence[tuple[int, QuarantineKeys]] | None = None,
    boundary: str = "fill",
    allow_repeats: bool = False,
    first_step: int = 0,
) -> Plan:
    """Return a plan: everything that decides which samples a step holds, frozen under one hash.

    Args:
        sources: Name -> version, view, dataset (`loader.items`) or `loader.source(...)`. The name is part of the order.
        seed: Seed of the order, 0 to 2^64 - 1.
        global_batch: Samples per optimizer step over all ranks. A ramp is [(0, 256), (1000, 512), ...]: first step and
            number.
        bucket_by: `loader.bucket(...)`, or only its expression, such as "bucket". Every batch then comes from one
            bucket. Its batches, or their budget, may be ramps too.
        pack: `loader.pack("tokens.npy", length=2048)`. Samples are then documents, and a slot is a sequence of them.
            The packing table is computed once, from the indexes, and kept under the root. Views that `view.packed`
            returned for the same request stay as they are.
        schedule: [(start step, {name: weight}), ...].
        quarantine: Known-bad samples, whose slots get substitutes: {name: [sample keys]}, or [(start step, {name:
            [sample keys]}), ...].
        boundary: "fill" completes the last batch of an epoch with samples of the next epoch. "mask", for one source,
            pads it: no batch holds a sample twice.
        allow_repeats: True accepts a source, or one of its buckets, smaller than its batch.
        first_step: Step at which the first epoch begins; the plan has none before it. Needs boundary="mask".

    Raises: EmptyView, BatchTooLarge, InvalidPlan.
    """
    if not isinstance(sources, Mapping):
        raise InvalidPlan(
            f"sources = {sources!r}: a mapping of names to views is needed, such as {{'photos': version}}; the name is "
            "part of the order",
            what="sources",
            given=sources,
            accepted="a mapping of names to views",
        )
    return make_plan(
        {name: _build_view(name, choice) for name, choice in sources.items()},
        seed=seed,
        global_batch=global_batch,
        bucket_by=bucket_by,
        pack=pack,
        schedule=schedule,
        quarantine=quarantine,
        boundary=boundary,
        allow_repeats=allow_repeats,
        first_step=first_step,
    )


def source(
    view: Viewable, weight: Weight = 1, chunk: int | None = None, lanes: int | None = None
) -> MixtureSource:
    """Return a view with its weight in a mixture and, optionally, its chunk (samples) and lanes."""
    viewed = _build_view("source", view)
    if isinstance(viewed, MixtureSource):
        raise InvalidPlan(
            "source(source(...)): pass a view or a version",
            what="source",
            given="source(...)",
            accepted="a view or a version",
        )
    return _source(viewed, weight, chunk, lanes)


def by_score(
    name: str,
    view: Version | View,
    by: str,
    weights: Mapping[str, Weight] | Sequence[Weight],
    *,
    edges: Sequence[Number] | None = None,
    share: Weight = 1,
) -> dict[str, MixtureSource]:
    """Return sources for a plan that repeats samples according to their scores: see `loader.order.by_score.by_score`.

    plan({**by_score("photos", view, "aesthetic", [1, 2, 4], edges=[0, 5, 7, 10]), "web": web}, ...)
    """
    from ..order.by_score import by_score as _by_score

    return _by_score(name, _build_view(name, view), by, weights, edges=edges, share=share)


def open_plan(
    root: Root,
    plan_hash: str,
    *,
    retired: bool = False,
    items: Mapping[str, Any] | None = None,
) -> Plan:
    """Return a plan saved with `plan.save(root)`.

    items: Name of the data -> its dataset, as for `loader.plan`. Without it, a plan over datasets makes no batch.
    retired: True also opens retired versions, to inspect a past run. Their data may be deleted at any time.

    Raises: InvalidPlan if the hash is unknown; PlanMismatch; FormatTooNew; Corrupt; VersionRetired; Denied if a
    takedown covers samples of a retired version.
    """
    open_version: Callable[[str], Version] = root.open
    if retired:
        open_version = partial(open_retired, root)
    from ..dataset.versions.planned_versions import ahead_of_plan  # only for saved plans

    with ahead_of_plan(root, plan_hash) as open_planned:
        body = _plan_body(root, plan_hash)
        opened = open_planned(body)

    def open_early(ref: str) -> Version:
        version = opened.get(ref)
        if version is None:
            return open_version(ref)
        return version

    return _build_plan(root, plan_hash, body, open_early, items or {})


def open_saved_plan(
    root: Root,
    plan_hash: str,
    open_version: Callable[[str], Version],
    items: Mapping[str, Any] = MappingProxyType({}),
) -> Plan:
    """Return a saved plan over the versions that a function opens. Raises: as `open_plan`; the function's errors."""
    return _build_plan(root, plan_hash, _plan_body(root, plan_hash), open_version, items)


def _plan_body(root: Root, plan_hash: str) -> Any:
    """Return the JSON of a saved plan, unchecked. Raises: InvalidPlan if there is none; Corrupt."""
    try:
        data = root.store.get(f"plans/{plan_hash}.json").data
    except ObjectNotFound as error:
        raise InvalidPlan(
            f"{root.url} has no plan {plan_hash!r}; plan.save(root) stores one",
            what="plan",
            where=root.url,
            given=plan_hash,
        ) from error
    try:
        return parse_json(data)
    except DamagedJson as error:
        raise Corrupt(
            f"{root.url}/plans/{plan_hash}.json is not JSON ({error}); save the plan again, or restore the file",
            what="plan",
            where=f"{root.url}/plans/{plan_hash}.json",
            accepted="JSON",
            given=data[:80],
        ) from error


def _build_plan(
    root: Root,
    plan_hash: str,
    body: Any,
    open_version: Callable[[str], Version],
    items: Mapping[str, Any],
) -> Plan:
    from ..order.from_json import plan_from_json

    open_once = cache(open_version)  # for all buckets and views

    def reopen_view(spec: dict[str, Any]) -> OrderView:
        if spec.get("kind") == "items":
            from .items import items_again  # only for a dataset

            return items_again(spec, items)
        return _reopen_view(open_once, spec)

    opened = plan_from_json(body, reopen_view)
    if opened.hash != plan_hash:
        raise PlanMismatch(
            f"{root.url}/plans/{plan_hash}.json holds the plan {opened.hash}: it was edited or renamed; restore it, "
            "or save the plan again",
            what="plan",
            where=f"{root.url}/plans/{plan_hash}.json",
            given=opened.hash,
            accepted=plan_hash,
        )
    return opened


def open_retired(root: Root, ref: str) -> Version:
    """Return a version, also a retired one. Raises: VersionRetired if its data is deleted; Denied; as `root.open`."""
    # Nearly every version is not retired, and opens without a request more.
    with suppress(VersionRetired):
        return root.open(ref)
    record = root.record(ref, retired=True)
    from ..dataset.publishing.apply_denies import find_parent_denied  # 12 modules, not needed for training

    try:
        version = root.open(ref, retired=True)
        denied = find_parent_denied(version, root.state.denies)
    except ObjectNotFound as error:
        raise VersionRetired(
            f"{record.name} ({record.id}) was retired ({record.retired}), and its data is deleted: its samples cannot "
            "be shown any more. The trail of a run keeps digests and notes (loader.read_trail)",
            dataset=record.dataset,
            what=record.name,
            where=record.id,
            given=record.retired,
        ) from error
    if denied:
        raise Denied(
            f"{record.name} ({record.id}) was retired, and a later takedown covers samples of it: no version shows "
            "them. The trail of a run keeps digests and notes (loader.read_trail)",
            what=record.name,
            where=record.id,
        )
    return version


def reopen(root: Root, spec: Mapping[str, Any]) -> OrderView:
    """Return the view that a plan's JSON describes. Raises: InvalidPlan; as `root.open`."""
    return _reopen_view(root.open, spec)


_VIEW_JSON: Mapping[str, Mapping[str, type | UnionType]] = MappingProxyType(
    {
        "version": {"version": str, "fields": list, "where": str | None, "where_present": bool},
        "packed": {"documents": dict, "field": str, "length": int, "lengths": str | None},
        "listed": {"view": dict, "list": str},
        "windows": {"episodes": dict, "layout": dict},
        "synthetic": {"n": int, "name": str},
    }
)
"""Kind of a view in a plan's JSON -> the names that it must have, with their types."""


def _check_view_json(spec: object) -> None:
    """Raise InvalidPlan for a view's JSON that was edited or damaged."""
    if not isinstance(spec, Mapping):
        raise InvalidPlan(f"the plan's JSON is damaged: a view is {spec!r:.80}; save the plan again")
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in _VIEW_JSON:
        raise InvalidPlan(
            f"a plan's view is of kind {kind!r:.80}; known are {', '.join(map(repr, _VIEW_JSON))} and 'items'",
            what="view",
            given=kind,
            accepted=(*_VIEW_JSON, "items"),
        )
    for name, kinds in _VIEW_JSON[kind].items():
        value = spec.get(name)
        if name not in spec or not isinstance(value, kinds):
            raise InvalidPlan(
                f"the plan's JSON is damaged: {name} of a {kind!r} view is {value!r:.80}; save the plan again",
                what=name,
                where=f"{kind!r} view",
                given=value,
            )


def _reopen_view(open_version: Callable[[str], Version], spec: Mapping[str, Any]) -> OrderView:
    _check_view_json(spec)
    if spec.get("kind") == "synthetic":
        return replace(synthetic(spec["n"], spec["name"]), first=spec.get("first", 0))
    if spec.get("kind") == "packed":
        from ..order.sources.pack_request import pack  # only for packed plans

        documents = _reopen_view(open_version, spec["documents"])
        view = documents
        if isinstance(documents, ListedView):
            view = documents.listed
        if not isinstance(view, View):
            raise InvalidPlan(f"a plan packs a {type(view).__name__}; only versions have documents")
        ragged = spec.get("ragged", ())
        # A view's JSON has no values for positions without a token: they are in the plan's, and here 0 stands for them.
        side_fields = dict.fromkeys(view.fields, 0)
        for name in (spec["field"], *ragged):
            side_fields.pop(name, None)
        request = pack(
            spec["field"],
            spec["length"],
            lengths=spec["lengths"],
            beside=side_fields,
            together=spec.get("together"),
            split=spec.get("split", True),
            columns=spec.get("columns", ()),
            ragged=ragged,
        )
        if isinstance(documents, ListedView):
            return view.packed(request, documents)
        return view.packed(request)
    if spec.get("kind") == "listed":
        from ..dataset.versions.stored_list import reopen_list

        samples = _reopen_view(open_version, spec["view"])
        if not isinstance(samples, View):
            raise InvalidPlan(f"a plan lists samples of a {type(samples).__name__}; only versions have lists")
        return reopen_list(samples, spec["list"])
    if spec.get("kind") == "windows":
        from ..order.sources.window_layout import WindowLayout

        episodes = _reopen_view(open_version, spec["episodes"])
        if not isinstance(episodes, View):
            raise InvalidPlan(
                f"a plan's windows are of a {type(episodes).__name__}; only versions have episodes"
            )
        return episodes.windowed(WindowLayout.from_json(spec["layout"]))
    version = open_version(spec["version"])
    first = spec.get("first", 0)
    slices = _slices(spec)
    return View(version, spec["fields"], spec["where"], spec["where_present"], first, _columns(spec), slices)


def _slices(spec: Mapping[str, Any]) -> "list[SliceTerm]":
    """Return the slices in the JSON of a view. Raises: InvalidPlan."""
    bodies = spec.get("slices", [])
    if not isinstance(bodies, list):
        raise InvalidPlan(
            f"the plan's JSON is damaged: a view's slices are {bodies!r:.80}; save the plan again",
            what="slices",
            given=bodies,
        )
    if not bodies:
        return []
    from ..dataset.versions.slice_members import SliceTerm  # only for views of slices

    return [SliceTerm.from_json(body) for body in bodies]


def _columns(spec: Mapping[str, Any]) -> dict[str, Sequence[str] | None]:
    """Return column -> class names or None, from the JSON of a view."""
    return {str(name): classes for name, classes in spec.get("columns") or []}


def write_part(
    root: Root,
    txn: str,
    samples: Iterable[Sequence[Any]],
    group: str = "media",
    *,
    groups: Mapping[str, str] | None = None,
    name: str | None = None,
) -> "Part":
    """Write one part of a transaction, from (key, fields[, metadata[, source]]) tuples.

    Any number of workers may write parts; one `root.publish(dataset, parts)` creates the version.
    """
    from ..dataset.writing.single_part import write_part as _write_part

    with root.heartbeat(txn):
        return _write_part(root.store, txn, samples, group, groups=groups, name=name)


def _build_view(name: str, choice: Any) -> Any:
    """Return a source as `plan` takes it: a view, a `MixtureSource`, or the items of any other dataset."""
    if isinstance(choice, Version):
        return choice.select()
    # isinstance cannot check the protocol `OrderView`; datasets, the only other sources, lack its method.
    if hasattr(choice, "version_ordinals") or isinstance(choice, MixtureSource):
        return choice
    from .items import items  # only for a dataset

    try:
        return items(choice)
    except InvalidPlan as error:
        raise error.with_message(f"source {name!r}: {error}") from None
