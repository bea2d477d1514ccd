"""What was made of versions with samples that are taken down: none of it is left, and the proof sees what is."""

import html
import json

import pytest

from loader.dataset.log.denies import Target
from loader.dataset.names import card_folder

SECRET = "ZQALICEZQ"


def page(store, dataset, number, text):
    path = f"gates/{dataset}/{number:06d}-aa-{number:016x}.html"
    store.put(path, f"<figure><img alt='a face'><code>{html.escape(text)}</code></figure>".encode())
    return path


def pages(root):
    return [info.key for info in root.store.list("gates/")]


def unclean_paths(kit, root, n):
    return [one["path"] for one in kit.prove(root, n)["places"] if not one["clean"]]


def test_pictures_of_a_card_that_came_late(kit, root):
    """A card is made of a version that was open before it was retired."""
    version = kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    path = f"{card_folder('photos', version.number, version.id)}/examples-image.jpg"
    root.store.put(path, b"\xff\xd8 a picture")
    assert unclean_paths(kit, root, n) == [path]
    kit.take_down(root, n)
    assert unclean_paths(kit, root, n) == list(root.store.list("cards/")) == []


@pytest.mark.parametrize("key", ["p1", "a cat", "long/key", "R&D<1"])
def test_page_that_came_late(kit, root, key):
    """Names are compared as a page divides its text, unescaped."""
    kit.write(root, "photos", {key: SECRET, "p2": "bob"})
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    late = page(root.store, "photos", 1, key)
    others = [page(root.store, "clips", 1, key), page(root.store, "photos", 2, f"p2, {key}-2")]
    assert unclean_paths(kit, root, n) == [late]
    kit.take_down(root, n)
    assert sorted(pages(root)) == sorted(others)
    assert unclean_paths(kit, root, n) == []


def test_pages_that_name_nobody(kit, root):
    """Those that are there while a version has the sample may show it, and go; what is made since stays."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    n = kit.deny(root)
    same = page(root.store, "photos", 3, "batch 3 waits")
    kit.take_down(root, n)
    assert pages(root) == []
    kit.sweep(root)
    both = [page(root.store, "photos", 3, "batch 3 waits"), page(root.store, "photos", 4, "batch 4 waits")]
    assert unclean_paths(kit, root, n) == []
    for _ in range(2):
        kit.take_down(root, n)
    assert (same in both, pages(root), unclean_paths(kit, root, n)) == (True, both, [])


LINE = {"format": 1, "step": 0, "slot": 0, "source": "d", "stage": "decode", "substitute": "", "error": "x"}


def ledger(root, name, *lines):
    path = f"ledgers/{'a' * 64}/0-of-1/{name}.jsonl"
    root.store.put(path, "".join(json.dumps(LINE | line) + "\n" for line in lines).encode())
    return lambda: [json.loads(line) for line in root.store.get(path).data.splitlines()]


@pytest.mark.parametrize("key", ["key", "error", "format", "source"])
def test_ledgers_fields_stay(kit, root, key):
    """Also where a sample is called as one of them."""
    version = kit.write(root, "photos", {key: SECRET, "p2": "bob", "p3": "bob"})
    lines = [
        {"version_id": version.id, "key": key, "error": f"of {key}: damaged"},
        {"version_id": version.id, "key": "p2", "substitute": key, "error": "of p2: damaged"},
        {"version_id": version.id, "key": "p3", "substitute": "p2"},
    ]
    told = ledger(root, "0-0-0", *lines)
    n = kit.deny(root, Target(kind="sample", value=key, dataset="photos"))
    kit.take_down(root, n)
    first, second, third = told()
    assert first == LINE | lines[0] | {"key": "(taken down)", "error": "(taken down)"}
    assert second == LINE | lines[1] | {"substitute": "(taken down)"}
    assert third == LINE | lines[2]
    kit.sweep(root)
    assert unclean_paths(kit, root, n) == []


def test_another_datasets_samples_of_the_same_key(kit, root):
    """In its ledgers and on its pages: they are not looked for, and not changed."""
    kit.write(root, "clips", {"000123": SECRET, "000124": "bob"})
    theirs = kit.write(root, "photos", {"000123": "zed"})
    line = {"version_id": theirs.id, "key": "000123"}
    told = ledger(root, "0-0-0", line)
    theirs = page(root.store, "photos", 1, "000123")
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    assert (told(), pages(root), unclean_paths(kit, root, n)) == ([LINE | line], [theirs], [])
