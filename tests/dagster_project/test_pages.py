"""Chromium walks Dagster's own pages over a small root: what a person sees of batches, checks, runs and versions."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

import loader
from tests.servers.chromium import Page, chromium
from tests.servers.deployment import REPOSITORY, Deployment, deployment

pytestmark = pytest.mark.server
_ENDED = {"SUCCESS", "FAILURE"}
_FOLDED = """[...document.querySelectorAll('tr')].filter((row) => row.innerText.trim().split('\\n')[0] === %r)
    .flatMap((row) => [...row.querySelectorAll('*')])
    .find((one) => one.innerText === '[Show Markdown]' && !one.children.length)"""
_PICTURES = "[...document.querySelectorAll('[role=dialog] img')].map((one) => one.naturalWidth)"


class Pages(NamedTuple):
    """The browser, the servers behind it, and what is to be seen. good, bad: batches; made, stopped: their runs."""

    page: Page
    url: str
    good: str
    bad: str
    made: str
    stopped: str
    released: str


def _photo(number: int) -> bytes:
    coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(coarse).resize((96 + 8 * number, 64)).save(sink, "JPEG", quality=92)
    return sink.getvalue()


def _land(place: Path) -> None:
    """A batch of four photos, and one of which three are cut off."""
    place.mkdir()
    for number in range(4):
        (place / f"good-{number}.jpg").write_bytes(_photo(number))
        (place / f"later-{number}.jpg").write_bytes(_photo(number + 4)[: 700 if number else None])


def _wait_runs(servers: Deployment, job: str, n: int) -> list[dict[str, object]]:
    def finished_runs() -> list[dict[str, object]]:
        runs = [run for run in servers.runs(job) if run["status"] in _ENDED]
        return runs if len(runs) == n else []

    runs: list[dict[str, object]] = servers.wait_for(f"{n} runs of {job} ended", finished_runs)
    return runs


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """Discovery is switched on, its two runs end, and a release is launched, all through GraphQL."""
    folder = tmp_path_factory.mktemp("pages")
    _land(folder / "landing")
    with loader.Root(folder / "root") as root:
        root.create()
    environment = {"PENSTOCK_ROOT": str(folder / "root"), "PENSTOCK_LANDING": str(folder / "landing")}
    definitions = REPOSITORY / "tests" / "servers" / "small_pipeline.py"
    with deployment(folder / "dagster", definitions, environment) as servers:
        servers.switch_on("small_discovery")
        by_status = {run["status"]: run for run in _wait_runs(servers, "small_ingest", 2)}
        made, stopped = by_status["SUCCESS"], by_status["FAILURE"]
        released = servers.launch("small_release")
        _wait_runs(servers, "small_release", 1)
        with chromium(folder / "profile") as page:
            yield Pages(
                page=page,
                url=servers.url,
                good=made["tags"]["dagster/partition"],
                bad=stopped["tags"]["dagster/partition"],
                made=made["runId"],
                stopped=stopped["runId"],
                released=released,
            )


@pytest.fixture(autouse=True)
def no_errors(pages: Pages) -> Iterator[None]:
    """The console stays empty of errors on every page."""
    yield
    found, pages.page.problems[:] = [*pages.page.problems], []
    assert found == []


GROUPS = ("raw", "ingest", "features", "release")
STAGES = ("raw_objects", "media", "units", "feature_phash", "samples", "version")


def test_catalog_names_every_asset_with_what_it_is(pages: Pages) -> None:
    pages.page.open(f"{pages.url}/assets", *(f"small / {stage}" for stage in STAGES), "Materialized")
    pages.page.wait_for("An immutable version of the dataset, from batches that passed their checks.")
    pages.page.wait_until("five are partitioned", lambda: pages.page.text().count("2 partitions") == 5)


def test_lineage_is_one_line_from_raw_objects_to_the_version(pages: Pages) -> None:
    pages.page.open(f"{pages.url}/asset-groups", "Global asset lineage", *GROUPS)
    upstream = "view=lineage&lineageScope=upstream&lineageDepth=5"
    pages.page.open(f"{pages.url}/assets/small/version?{upstream}", *STAGES, *GROUPS)
    boxes = """Object.fromEntries([...document.querySelectorAll('foreignObject')].map((one) => [
        one.textContent.match(/raw_objects|feature_phash|media|units|samples|version|$/)[0],
        one.getBoundingClientRect().x]))"""
    pages.page.wait_until("every asset is drawn", lambda: {*STAGES} <= {*pages.page.value_of(boxes)})
    at: dict[str, float] = pages.page.value_of(boxes)
    drawn = [at[stage] for stage in STAGES]
    assert drawn == sorted(set(drawn))


def test_batch_that_was_stopped_is_red_among_the_partitions(pages: Pages) -> None:
    place = f"{pages.url}/assets/small/samples?view=partitions&partition="
    pages.page.open(place + pages.bad, "Failed (1)", "Materialized (1)", "Missing (0)", pages.good)
    pages.page.wait_for(f"Run {pages.stopped[:8]} failed, and did not materialize this asset.")
    pages.page.open(place + pages.good, "Latest materialization", "small_ingest", "stage_record")
    # The last two are of the observation: which version it became.
    became = "small@1", f"Observed in run {pages.released[:8]}"
    pages.page.wait_for("verdict\n\t\npublished", "used\n\t\n4", *became)


def test_failed_check_says_so_in_its_history(pages: Pages) -> None:
    pages.page.open(f"{pages.url}/assets/small/media?view=checks", "Checks (1)", "readable", "blocking")
    pages.page.click("Execution history")
    pages.page.wait_for("Failed", "Passed")


def test_run_of_a_stopped_batch_names_its_bad_objects(pages: Pages) -> None:
    reason = "3 of 4 objects are unreadable; the limit is 50.0% (max_reject_rate): 'later-1.jpg'"
    pages.page.open(f"{pages.url}/runs/{pages.stopped}", "Failure", reason)
    pages.page.wait_for(f"partition: {pages.bad}", "Errored (1)", "Succeeded (1)", "Not executed (3)")
    pages.page.open(f"{pages.url}/runs", pages.stopped[:8], pages.made[:8], pages.released[:8])


def test_ticks_of_discovery_say_what_was_made(pages: Pages) -> None:
    pages.page.open(f"{pages.url}/locations/penstock/sensors/small_discovery", "2 runs requested")
    pages.page.wait_for("(2 partitions created)", "Find new objects of small")


def test_version_is_shown_by_numbers_plots_and_links(pages: Pages) -> None:
    page = pages.page
    page.open(f"{pages.url}/assets/small/version", "Row count\n4", "to_the_samples", "card_html")
    # The table of groups is one, and not folded into a dialog.
    page.wait_for("version\n\t\n", "small@1", "image\t4\t")
    links = page.value_of("[...document.querySelectorAll('a')].map((one) => one.getAttribute('href'))")
    (batch,) = [link for link in links if link and pages.good in link]
    assert [link for link in links if link and f"/runs/{pages.made}" in link]
    for what in ("plot", "distributions", "examples image"):
        page.open(f"{pages.url}/assets/small/version", what)
        page.wait_until(f"{what} is there", lambda what=what: page.value_of(f"Boolean({_FOLDED % what})"))
        page.value_of(f"{_FOLDED % what}.click()")
        page.wait_until("pictures are drawn", lambda: (found := page.value_of(_PICTURES)) and all(found))
    page.open(batch if batch.startswith("http") else pages.url + batch, pages.good, "Latest materialization")
    page.wait_for(pages.made[:8])


def test_sensors_and_schedules_are_listed_with_when_they_run(pages: Pages) -> None:
    pages.page.open(f"{pages.url}/automation", "small_discovery", "small_watch", "penstock_tidy_weekly")
    pages.page.wait_for("Scheduled At 05:30 AM UTC, only on Sunday")
    pages.page.open(f"{pages.url}/locations/penstock/schedules/penstock_tidy_weekly", "penstock_tidy")
