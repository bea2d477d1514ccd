"""Findings of the gate, as a page for people: `gates/<dataset>/<batch>-<hash>.html` in the root.

Created once and named by its content; the verdict and the version's manifest name it. It holds names and pictures of
samples, so a takedown deletes the pages of its datasets.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.errors import AlreadyExists, MissingDependency
from loader.storage import Store
from penstock.card.templates import templates
from penstock.card.value import Example

from ..checks.outcome import CheckResult
from ..pages import plots

if TYPE_CHECKING:
    import polars as pl

    from .compare import Compared

MAX_PLOTS = 6
"""Columns with a picture; the others have their numbers."""
_IMAGE = re.compile(r"!\[(?P<alt>[^]]*)\]\((?P<data>data:image/png;base64,[A-Za-z0-9+/=]+)\)")


def plotted(compared: "Compared", results: Sequence[CheckResult]) -> str:
    """Draw the first columns with findings, before and after, as a Markdown image; "" where there are none."""
    if compared.baseline is None:
        return ""
    shown: dict[str, tuple[list[Any], list[Any]]] = {}
    for finding in (one for result in results for one in result.findings):
        name, of = str(finding["column"]).partition(" =")[0], str(finding["of"])
        kind = of.removeprefix("objects: ").partition(",")[0]
        media = of.startswith("objects")
        now, before = compared.now, compared.baseline.batches
        mine = _values(now.media if media else now.samples, name, kind)
        theirs = [
            value for one in before for value in _values(one.media if media else one.samples, name, kind)
        ]
        if mine and theirs and len(shown) < MAX_PLOTS:
            shown.setdefault(f"{name} ({'objects, ' if media else ''}{kind or 'all'})", (theirs, mine))
    try:
        return plots.before_and_after(shown)
    except MissingDependency:
        return ""


def _values(frame: "pl.DataFrame", name: str, kind: str) -> list[Any]:
    """Return the values of rows of a kind, "" for all."""
    if name not in frame.columns:
        return []
    if kind and "kind" in frame.columns:
        frame = frame.filter(frame["kind"] == kind)
    return frame[name].drop_nulls().to_list()


def render(
    title: str,
    facts: Mapping[str, str],
    results: Sequence[CheckResult],
    picture: str,
    shown: Sequence[tuple[str, Example]] = (),
    before: Sequence[tuple[str, Example]] = (),
) -> str:
    """Return the whole page. facts: name -> text, on top.

    picture: of `plotted`; shown, before: of `examples.shown_of` and `before_of`.
    """
    template = templates(Path(__file__).parent).get_template("gate.html.j2")
    return template.render(
        title=title,
        facts=facts,
        results=sorted(results, key=lambda one: (not one.stops, one.passed)),
        picture=_IMAGE.fullmatch(picture),
        shown=_by_words(shown),
        before=_by_words(before),
        findings=_findings,
    )


def _by_words(shown: Sequence[tuple[str, Example]]) -> list[tuple[str, list[Example]]]:
    return [
        (words, [example for _, example in some]) for words, some in groupby(shown, key=lambda one: one[0])
    ]


def _findings(one: CheckResult) -> list[list[object]]:
    return [
        [
            *(found[name] for name in ("what", "column", "of", "before", "now")),
            f"{float(str(found['effect'])):.4g}",
            "" if found["certain"] else f"{float(str(found['limit'])):.4g}",
            ", ".join(map(str, found["keys"])),
        ]
        for found in one.findings
    ]


def save(store: Store, dataset: str, batch: str, html: str) -> str:
    """Write the page, and return its path in the root. Raises: StoreError."""
    data = html.encode()
    path = f"gates/{dataset}/{batch}-{hashlib.sha256(data).hexdigest()[:16]}.html"
    with suppress(AlreadyExists):  # the same page
        store.put_if_absent(path, data)
    return path
