"""Addresses of the viewer's pages, for everybody who sees Dagster's."""

import pytest

from loader.errors import InvalidRuntime
from resources.viewer_links import run_page, sample_page, version_page, viewer_url
from tests.refusals import refusal


def test_pages_lie_below_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VIEW_URL", "https://view.example:8497/lab/")
    assert version_page("photos", 3) == "https://view.example:8497/lab/v/photos/3"
    assert sample_page("photos", 3, 17) == "https://view.example:8497/lab/v/photos/3/s/17"
    assert run_page("a/b](javascript:x)") == "https://view.example:8497/lab/r/a%2Fb%5D%28javascript%3Ax%29"


@pytest.mark.parametrize("set_to", [None, ""])
def test_without_a_viewer_there_are_none(monkeypatch: pytest.MonkeyPatch, set_to: str | None) -> None:
    monkeypatch.delenv("PENSTOCK_VIEW_URL", raising=False)
    if set_to is not None:
        monkeypatch.setenv("PENSTOCK_VIEW_URL", set_to)
    assert {viewer_url(), version_page("photos", 3), sample_page("photos", 3, 1), run_page("big")} == {""}


@pytest.mark.parametrize(
    "url",
    [
        *(
            "javascript:x",
            "view.example",
            "http://ann:secret@view.example",
            "http://x/?token=secret",
            "http:///v",
        ),
        *("http://[view", "http://[view]", "http://view.example:port", "http://view.example:99999"),
    ],
)
def test_address_that_is_not_for_everybody(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PENSTOCK_VIEW_URL", url)
    with refusal(InvalidRuntime, what="PENSTOCK_VIEW_URL", accepted="http(s)://host:port/path") as caught:
        viewer_url()
    assert "secret" not in str(caught.value)
