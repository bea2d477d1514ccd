"""Dagster's webserver and code server over a World, asked as its pages ask and looked at in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.meter import cpu_s, memory_bytes
from tests.servers.chromium import Page, chromium
from tests.servers.deployment import Deployment

from .world import DATASET, World

_DEFINITIONS = Path(__file__).with_name("definitions.py")
_SAMPLES: dict[str, Any] = {"k": {"path": [DATASET, "samples"]}}
QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "asset graph": (
        "{ assetNodes { assetKey { path } dependencyKeys { path } partitionStats { numMaterialized numFailed "
        "numPartitions } assetMaterializations(limit: 1) { timestamp partition } } }",
        {},
    ),
    "partitions of an asset": (
        "query($k: AssetKeyInput!) { assetNodeOrError(assetKey: $k) { ... on AssetNode { partitionKeysByDimension { "
        "partitionKeys } assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions "
        "failedPartitions unmaterializedPartitions materializingPartitions } } } } }",
        _SAMPLES,
    ),
    "events of an asset": (
        "query($k: AssetKeyInput!) { assetNodeOrError(assetKey: $k) { ... on AssetNode { assetMaterializations(limit: "
        "100) { timestamp partition runId metadataEntries { label } } } } }",
        _SAMPLES,
    ),
    "runs": (
        "{ runsOrError(limit: 25) { ... on Runs { count results { runId status startTime tags { key value } "
        "assetSelection { path } } } } }",
        {},
    ),
}
PAGES: dict[str, tuple[str, str]] = {
    "catalog": ("/assets", "{n:,} partitions"),
    "lineage": ("/asset-groups", "training_run"),
    "partitions of samples": (f"/assets/{DATASET}/samples?view=partitions", "Materialized ({n})"),
    "runs": ("/runs", f"{DATASET}_ingest"),
}
"""Page -> its path, and what it shows once it is there."""


class Served(NamedTuple):
    """page_s: median seconds by name; asked_cpu_s: processor seconds of the servers for all pages and questions;
    code_mib, web_mib: memory afterwards."""

    page_s: dict[str, float]
    asked_cpu_s: float
    code_mib: float
    web_mib: float


class Servers:
    """Of one World; page: a browser that is open."""

    def __init__(self, deployment: Deployment, page: Page) -> None:
        self._deployment, self._page = deployment, page
        self._url = deployment.url

    def look(self, n: int, rounds: int = 3) -> Served:
        """Ask and look at everything, in turns. n: partitions that there are."""
        pids = {name: self._deployment.pid(name) for name in ("code-server", "webserver")}
        before = sum(map(cpu_s, pids.values()))
        page_s: dict[str, list[float]] = {name: [] for name in PAGES}
        for _ in range(rounds):
            for query, variables in QUERIES.values():
                self._deployment.ask(query, **variables)
            for name, (path, shown) in PAGES.items():
                page_s[name].append(self._page.open(self._url + path, shown.format(n=n)))
        return Served(
            page_s={name: median(found) for name, found in page_s.items()},
            asked_cpu_s=sum(map(cpu_s, pids.values())) - before,
            code_mib=memory_bytes(pids["code-server"]) / 2**20,
            web_mib=memory_bytes(pids["webserver"]) / 2**20,
        )


@contextmanager
def served(folder: Path, postgres_url: str = "") -> Iterator[tuple[World, Servers]]:
    """A World and what serves it; everything ends with the block."""
    where = folder / "served"
    environment = {"PENSTOCK_ROOT": str(where / "root"), "PENSTOCK_LANDING": str(where / "landing")}
    deployment = Deployment(folder / "dagster", _DEFINITIONS, environment, postgres_url)
    try:
        deployment.prepare()
        world = World(where, deployment.home)
        deployment.start("code-server", "webserver")
        with chromium(folder / "profile") as page:
            yield world, Servers(deployment, page)
        world.close()
    finally:
        deployment.close()
