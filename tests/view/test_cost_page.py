"""The page of datasets' cost: the figures of `penstock usage`, and none of its requests on the first page."""

import json
import re

import pytest

from penstock.cli import main
from tests.view.conftest import write_photos
from tests.view.test_costs import Counted
from tests.view.test_web import Served


@pytest.fixture
def root(root):
    """A root with photos@1, photos@2 and words@1."""
    write_photos(root)
    write_photos(root, numbers=range(20, 23))
    with root.write("words") as writer:
        writer.add("k", {"txt": "cup"})
    return root


def serve_root(root):
    store = Counted(root.store)
    root._use(store)
    return Served(root, recipe=None), store


def test_cost_equals_the_verbs_and_the_first_page_shows_it_once_known(root, capsys):
    main(["usage", "--by", "dataset", "--json", "--root", root.url])
    expected = {row["name"]: row for row in json.loads(capsys.readouterr().out)["cost"]}
    server, store = serve_root(root)
    try:
        first = server.get("/").text
        assert re.search(r'href="[./]*cost"', first)
        assert "GPU-hours" not in first
        home = sum(store.requests.values())
        body = server.get("/cost.json").json()
        rows = {row["name"]: row for row in body["rows"]}
        assert {name: row["nbytes"] for name, row in rows.items()} == {
            name: row["nbytes"] for name, row in expected.items()
        }
        assert rows["photos"]["frees"] == expected["photos"]["frees"] > 0
        assert body["newest"] == {"photos": 2, "words": 1}
        page = server.get("/cost").text
        assert "Cost of datasets" in page
        assert re.search(r'href="[./]*v/photos/2"', page)
        assert "GPU-hours" in server.get("/").text
        # Once an hour: the page reads nothing again.
        before = sum(store.requests.values())
        server.get("/cost")
        assert sum(store.requests.values()) - before <= home
        assert server.get("/index.json").json()["cost"]["rows"] == body["rows"]
        assert 'class="json" href="index.json?after=photos"' in server.get("/?after=photos").text
    finally:
        server.close()
