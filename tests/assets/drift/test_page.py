"""The page about a verdict: what was found, before and after, and nothing of the data that a browser would run."""

from dataclasses import replace
from html.parser import HTMLParser

from assets.drift import Thresholds
from assets.drift.compare import DRIFT_CHECKS, GateInputs
from assets.pages.gate_page import MAX_PLOTS, plot_findings, render
from assets.pages.plots import before_and_after
from benchmarks.gates.regressions import REGRESSIONS
from benchmarks.gates.trial import published
from benchmarks.gates.world import Feed, delivery

HOSTILE = "<script>alert(1)</script>"
PLANTED = (
    "a camera gone black in a third of its clips",
    "half of the speech at half the sample rate",
    "a feature scaled by 1.03",
)


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def gate_inputs(feed: Feed) -> GateInputs:
    return GateInputs(
        now=feed.facts(), baseline=published(), newest=None, protected=(), thresholds=Thresholds()
    )


def test_page_of_what_was_found() -> None:
    feed = delivery(77, 1_000)
    for name in PLANTED:
        feed = REGRESSIONS[name].plant(feed)
    feed = feed.with_samples(lambda i, row: row | ({"label": HOSTILE} if row["label"] == "tram" else {}))
    looked_at = gate_inputs(feed)
    results = [DRIFT_CHECKS["drift"](looked_at), DRIFT_CHECKS["agreement"](looked_at)]
    picture = plot_findings(looked_at, results)
    assert picture.startswith("![before and after of ")
    assert len(picture) < 60_000
    html = render(f"photos {HOSTILE}", {"batch": HOSTILE, "compared with": "photos@6"}, results, picture)
    tags = Tags(html)
    assert "script" not in tags.seen
    assert [link[:22] for link in tags.links] == ["data:image/png;base64,"]
    assert "alert(1)" in html
    for finding in results[0].findings:
        assert str(finding["column"]).partition(" =")[0] in html
    assert "<span class=failed>stopped</span>" in html
    assert "<span class=passed>passed</span>" in html


def test_page_without_a_baseline_or_findings() -> None:
    looked_at = replace(gate_inputs(delivery(77, 60)), baseline=None)
    results = [DRIFT_CHECKS["drift"](looked_at)]
    assert plot_findings(looked_at, results) == ""
    assert "img" not in Tags(render("photos", {}, results, "")).seen


def test_columns_of_numbers_words_and_nothing() -> None:
    many = {f"c{n}": ([0.1, 0.2, n], [0.3, 0.4]) for n in range(MAX_PLOTS + 2)}
    drawn = before_and_after({"kind": (["a", "b"], ["b"]), "none": ([], [1.0]), **many})
    alt = drawn.partition("]")[0]
    assert "kind" in alt
    assert "none" not in alt
    assert alt.count(",") == MAX_PLOTS - 1
    assert before_and_after({}) == ""
    assert before_and_after({"same": ([1.0, 1.0], [1.0])}).startswith("![")
