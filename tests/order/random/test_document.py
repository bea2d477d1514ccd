"""docs/order.md against the code: its example bytes are right, and the tests of its guarantees exist."""

import re
from pathlib import Path

from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.random import keyed_permutation
from loader.order.sources.views import synthetic

HERE = Path(__file__).parent.parent
TEXT = (HERE.parents[1] / "docs" / "order.md").read_text(encoding="utf-8")


def test_every_test_that_guarantees_name_exists():
    rows = [
        line
        for line in (HERE / "guarantees.md").read_text().splitlines()
        if line.startswith("|") and "test_" in line
    ]
    assert len(rows) >= 12
    for row in rows:
        file = None
        for named, function in re.findall(r"`(test_\w+\.py)?(?:::(test_\w+)(?:\.\.\.)?)?`", row):
            file = named or file
            (path,) = HERE.rglob(file)
            code = path.read_text(encoding="utf-8")
            assert f"def {function}" in code, (file, function)


def test_example_of_a_keys_fields():
    example = "".join(keyed_permutation.encode_field(field).hex() for field in (7, "photos", "P", 0))
    written = re.search(r"hashes the bytes\s+`([0-9a-f ]+)`", TEXT)
    assert written.group(1).replace(" ", "") == example


def test_document_shows_every_field_of_plan_and_state():
    made = make_plan({"a": source(synthetic(50), chunk=4)}, seed=7, global_batch=20)
    content, state = made.to_json(), made.state(3)
    parts = [content, content["sources"]["a"], content["segments"][0], state, state["past"]]
    held = {"a": synthetic(50, "s", {"b": 50})}
    bucketed = make_plan(held, seed=7, global_batch=20, bucket_by="b")
    content, past = bucketed.to_json(), bucketed.state(3)["past"]
    parts += [content["sources"]["a/b"], content["bucket_by"], past, past["bucket_by"]]
    for name in {name for part in parts for name in part}:
        assert f'"{name}":' in TEXT, name
