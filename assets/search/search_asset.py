"""The asset `search`: indexes the newest version, and makes its map. It blocks nothing, and fails no run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

import loader
from loader.errors import Corrupt, FieldMismatch, FieldNotFound, PenstockError
from penstock.search.index_build import make_index
from penstock.search.map.stored_map import make_map
from penstock.search.recall import measure_recall
from resources.storage import RootResource

from ..pipeline.stages import SEARCH, VERSION
from ..search_settings import Search
from ..spec import DatasetSpec

CHECK = "recall"
LEAST_RECALL = 0.95
_DESCRIPTION = (
    f"A search with the index returns {LEAST_RECALL:.0%} of the ten nearest samples or more, over 20 samples. A "
    "failure warns, and blocks nothing: penstock index --drop, then index again."
)
SearchEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedVersion:
    """The index of a dataset's newest version."""

    version: str
    """Version name, such as `photos@7`; "" if the dataset has none."""
    nbytes: int
    """Bytes of the indexes and the map."""
    seconds: float
    """Seconds that indexing took."""
    recall: dict[str, float] = field(default_factory=dict)
    """Compared field -> recall, 0 to 1."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Field that was not indexed, or `map` -> reason."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Path of a segment that is left out -> what is wrong with it."""
    n_mapped: int | None = None
    """Samples of the version with a place on the map; None without a map."""

    @property
    def passed(self) -> bool:
        if self.left_out or self.damaged:
            return False
        # Texts are indexed exactly, so they have no recall to measure.
        return min(self.recall.values(), default=1.0) >= LEAST_RECALL

    def metadata(self) -> dict[str, Any]:
        """Return Dagster metadata."""
        shown: dict[str, Any] = {
            "version": dg.MetadataValue.text(self.version or "none yet"),
            "bytes": dg.MetadataValue.int(self.nbytes),
            "seconds": dg.MetadataValue.float(round(self.seconds, 3)),
        }
        for name, recall in self.recall.items():
            shown[f"recall of {name}"] = dg.MetadataValue.float(round(recall, 4))
        for name, reason in self.left_out.items():
            shown[f"not indexed: {name}"] = dg.MetadataValue.text(reason)
        for path, problem in self.damaged.items():
            shown[f"left out: {path}"] = dg.MetadataValue.text(problem)
        if self.n_mapped is not None:
            shown["samples on the map"] = dg.MetadataValue.int(self.n_mapped)
        return shown


def index_newest(root: loader.Root, dataset: str, search: Search) -> IndexedVersion:
    """Index the fields of a dataset's newest version, measure the recall of its embeddings, and make its map.

    A field that the version lacks, or that cannot be compared, is left out with the reason. So is a map whose fit is
    damaged. Raises: StoreError; Corrupt.
    """
    newest = root.state.newest(dataset)
    if newest is None:
        return IndexedVersion(version="", nbytes=0, seconds=0.0)
    version = root.open(newest.name)
    nbytes = 0
    seconds = 0.0
    recall: dict[str, float] = {}
    left_out: dict[str, str] = {}
    damaged: dict[str, str] = {}
    n_mapped = None
    for name in search.fields:
        try:
            report = make_index(root, version.name, name)
        # A spec may name a field that only later versions have: index the others meanwhile.
        except (FieldNotFound, FieldMismatch) as error:
            left_out[name] = str(error)
            continue
        for index in report.fields:
            nbytes += index.nbytes
            damaged |= index.damaged
        seconds += report.seconds
        if name in search.like:
            recall[name] = measure_recall(version, name)
    if search.map:
        try:
            placed = make_map(root, version.name)
        except (FieldNotFound, FieldMismatch, Corrupt) as error:
            left_out["map"] = str(error)
        else:
            nbytes += placed.nbytes
            seconds += placed.seconds
            damaged |= placed.damaged
            n_mapped = placed.n_samples
    return IndexedVersion(
        version=version.name,
        nbytes=nbytes,
        seconds=seconds,
        recall=recall,
        left_out=left_out,
        damaged=damaged,
        n_mapped=n_mapped,
    )


def search_asset(spec: DatasetSpec, search: Search) -> dg.AssetsDefinition:
    """Return the asset [dataset, search], after the version."""
    key = dg.AssetKey([spec.name, SEARCH])
    check = dg.AssetCheckSpec(
        CHECK,
        asset=key,
        blocking=False,
        description=_DESCRIPTION,
    )

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, VERSION])],
        kinds={"parquet"},
        check_specs=[check],
        description="Codes of embeddings, texts and the map of the newest version, for penstock search.",
    )
    def search_index(context: dg.AssetExecutionContext, root: RootResource) -> Iterator[SearchEvent]:
        with root.opened() as opened:
            try:
                indexed = index_newest(opened, spec.name, search)
            except PenstockError as error:
                # The version is published: an index can be made at any time.
                context.log.warning("the index was not made: %s", error)
                reason = {"error": dg.MetadataValue.text(str(error))}
                yield _result(passed=False, metadata=reason)
                yield dg.MaterializeResult(metadata=reason)
                return
        metadata = indexed.metadata()
        yield _result(passed=indexed.passed, metadata=metadata)
        yield dg.MaterializeResult(metadata=metadata)

    return search_index


def _result(*, passed: bool, metadata: dict[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=CHECK,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata=metadata,
    )
