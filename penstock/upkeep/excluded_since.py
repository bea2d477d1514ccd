"""Find who excluded a sample that a training had, since which version, and from which slice."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loader import Plan, Root
from loader.api.explain import Explanation
from loader.dataset.log.state import VersionRecord
from loader.dataset.shards.address import SampleAddress
from loader.dataset.tables.manifest import read_manifest
from loader.dataset.tables.slice_record import path_parts
from loader.dataset.versions.samples_table import live_ordinals
from loader.errors import ObjectNotFound
from loader.run.recipe.recipe import stored_views
from loader.storage.threads import DaemonPool

from ..exclusion_records import SLICE_REASON, Exclusion, records, standing
from ..text import line_text

_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedSince:
    """A person's exclusion of a sample."""

    version: str
    """First version without the sample, such as `demo@8`."""
    by: str
    """Person's name."""
    reason: str
    """Person's reason."""
    slice: str | None
    """Slice from which the sample was excluded, such as `demo/covers`; None for none."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """Return the exclusion as one line."""
        source = ""
        if self.slice is not None:
            source = f"slice {self.slice}, "
        return line_text(f'excluded since {self.version}: {source}{self.by}: "{self.reason}"')


def find_exclusions(root: Root, explained: Sequence[Explanation]) -> list[ExcludedSince | None]:
    """Return, per sample, the exclusion by a person that keeps it out of its dataset's newest version; None for none.

    For a packed sequence, the first excluded document counts. Reads a dataset's exclusions, and the keys of its newest
    version if some of the samples were excluded.
    """
    addresses = [list(_addresses(explanation)) for explanation in explained]
    keys: dict[str, set[str]] = defaultdict(set)  # dataset -> keys
    for sample_addresses in addresses:
        for address in sample_addresses:
            dataset = _dataset(address)
            keys[dataset].add(address.key)
    by_dataset: dict[str, dict[str, ExcludedSince]] = {}
    for dataset, dataset_keys in keys.items():
        by_dataset[dataset] = _of_dataset(root, dataset, dataset_keys)

    exclusions: list[ExcludedSince | None] = []
    for sample_addresses in addresses:
        first = None
        # Reversed, so that the first excluded document of a sequence remains.
        for address in reversed(sample_addresses):
            dataset = _dataset(address)
            first = by_dataset[dataset].get(address.key, first)
        exclusions.append(first)
    return exclusions


def find_sample_exclusion(root: Root, dataset: str, key: str) -> ExcludedSince | None:
    """Return the exclusion by a person that keeps a sample out of its dataset's newest version; None for none.

    Costs as `find_exclusions`.
    """
    by_key = _of_dataset(root, dataset, {key})
    return by_key.get(key)


def plan_slices(plan: Plan) -> list[str]:
    """Return the slices of a plan's views, such as `demo/covers`, sorted."""
    names = set()
    for view in stored_views(plan).values():
        for term in view.slices:
            names.add(f"{view.version.dataset}/{term.name}")
    return sorted(names)


def exclusion_slice(record: Exclusion) -> tuple[str | None, str]:
    """Return the slice from which an exclusion was made, or None, and the person's reason."""
    parts = path_parts(record.page)
    match = SLICE_REASON.fullmatch(record.reason)
    if parts is None or match is None:
        return None, record.reason
    dataset, name, _ = parts
    full_name = f"{dataset}/{name}"
    # A reason that names another slice than the page is a person's own text.
    if match["slice"] != full_name:
        return None, record.reason
    return full_name, match["why"]


def _addresses(explanation: Explanation) -> Iterator[SampleAddress]:
    if explanation.dataset is not None:  # a dataset's items are not stored samples
        return
    if not explanation.pieces:
        yield explanation.address
    for piece in explanation.pieces:
        yield piece.address


def _dataset(address: SampleAddress) -> str:
    return address.version.rpartition("@")[0]


def _of_dataset(
    root: Root,
    dataset: str,
    keys: set[str],
) -> dict[str, ExcludedSince]:
    """Return key -> its exclusion, for keys that the newest version lacks."""
    history = records(root.store, dataset)
    exclusions: dict[str, Exclusion] = {}
    for record in history:
        if isinstance(record, Exclusion):
            for key in keys.intersection(record.keys):
                exclusions[key] = record
    for key, of_key in standing(history).items():
        if key in exclusions:
            exclusions[key] = of_key[0]  # later builds obey the oldest one
    newest = root.state.newest(dataset)
    if not exclusions or newest is None:
        return {}

    excluded_keys = sorted(exclusions)
    version = root.open(newest.id)
    # int64 [keys]: -1 for a key without a live sample.
    ordinals = live_ordinals(version, excluded_keys)
    since: dict[str, str] = {}  # path of a record -> first version without its samples
    result: dict[str, ExcludedSince] = {}
    for key, ordinal in zip(
        excluded_keys,
        ordinals.tolist(),
        strict=True,
    ):
        if ordinal >= 0:  # a person withdrew the exclusion, or its version is not published yet
            continue
        record = exclusions[key]
        if record.path not in since:
            # Once per record: it reads manifests, and a record may have thousands of samples.
            since[record.path] = _first_version(root, record) or newest.name
        slice_name, reason = exclusion_slice(record)
        result[key] = ExcludedSince(
            version=since[record.path],
            by=record.by,
            reason=reason,
            slice=slice_name,
        )
    return result


def _first_version(root: Root, exclusion: Exclusion) -> str:
    """Return the name of the first version that an exclusion made, or that applied it; "" for none."""
    path = exclusion.path
    _, _, shown_in = exclusion.version.rpartition(
        "@"
    )  # number of the version in which the person saw the samples
    first_number = int(shown_in) + 1
    every = root.state.versions(exclusion.dataset)
    versions = [one for one in every if one.number >= first_number]

    def applies(record: VersionRecord) -> bool:
        try:
            manifest = read_manifest(
                root.store,
                record.manifest,
                record.sha256,
            )
        except ObjectNotFound:  # of a retired version
            return False
        producer = manifest["producer"]
        applied = producer.get("exclusions", ())
        return producer.get("exclusion") == path or path in applied

    # In blocks: usually one of the first versions after the decision applies it.
    with DaemonPool(_READS_AT_ONCE, "penstock-excluded") as pool:
        for start in range(0, len(versions), _READS_AT_ONCE):
            block = versions[start : start + _READS_AT_ONCE]
            is_applied = list(pool.map(applies, block))
            if any(is_applied):
                first = is_applied.index(True)
                return block[first].name
    return ""
