"""Saved plans that somebody edited, each under the hash of its new content."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.errors import FieldNotFound, FormatTooNew, InvalidPlan, PenstockError, PlanMismatch
from loader.order.random.plan_hash import content_hash

TOKENS = "tokens.npy"
MASK = "mask.npy"
DELETED = object()
PACK = loader.pack(TOKENS, 16, pad_id=5, beside={MASK: True}, together="pair_id")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> loader.Root:
    root = loader.Root(tmp_path_factory.mktemp("plans"))
    with root.write("pairs") as writer:
        for number in range(24):
            n = 1 + number % 7
            fields = {TOKENS: np.arange(n, dtype=np.int32), MASK: np.ones(n, bool)}
            metadata = {"pair_id": f"p{number % 12}", "half": number % 5}
            writer.add(f"k{number:02d}", fields, metadata)
    return root


@pytest.fixture(scope="module")
def plan_body(root: loader.Root) -> Any:
    """JSON of a plan of format 2."""
    pairs = root.open("pairs@1").select(TOKENS, MASK)
    plan = loader.plan({"pairs": pairs}, seed=7, global_batch=2, pack=PACK)
    assert loader.open_plan(root, plan.save(root)).hash == plan.hash
    return plan.to_json()


def edit_body(body: Any, path: tuple[Any, ...], value: object) -> Any:
    body = copy.deepcopy(body)
    parent = body
    for name in path[:-1]:
        parent = parent[name]
    if value is DELETED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return body


def open_edited(root: loader.Root, body: Any) -> loader.Plan:
    plan_hash = content_hash("p", body)
    folder = Path(root.store.url.removeprefix("file://")) / "plans"
    (folder / f"{plan_hash}.json").write_text(json.dumps(body))
    return loader.open_plan(root, plan_hash)


VIEW = ("sources", "pairs", "view")
DOCUMENTS = (*VIEW, "documents")
BESIDE = ("pack", "beside", 0)


@pytest.mark.parametrize(
    ("path", "value", "error", "says"),
    [
        (("format",), 3, FormatTooNew, "format"),
        (("format",), 1, PlanMismatch, "format differs"),
        (("pack",), None, InvalidPlan, "the plan's pack is None"),
        (("pack", "field"), MASK, InvalidPlan, "source 'pairs' is packed as"),
        (("pack", "field"), [1], InvalidPlan, "JSON is damaged"),
        (("pack", "length"), 8, InvalidPlan, "source 'pairs' is packed as"),
        (("pack", "length"), "x", InvalidPlan, "source 'pairs' is packed as"),
        (("pack", "length"), 2**63, InvalidPlan, "source 'pairs' is packed as"),
        (("pack", "dtype"), None, InvalidPlan, "not a numpy dtype"),
        (("pack", "beside"), DELETED, InvalidPlan, "source 'pairs' is packed as"),
        ((*BESIDE, "field"), "x", InvalidPlan, "source 'pairs' is packed as"),
        ((*BESIDE, "field"), {}, InvalidPlan, "JSON is damaged"),
        ((*BESIDE, "fill"), "x", InvalidPlan, "beside = 'x' does not fit into bool"),
        ((*BESIDE, "fill"), 2, InvalidPlan, "beside = 2 does not fit into bool"),
        ((*VIEW, "together"), DELETED, PlanMismatch, "is not the view that was planned"),
        ((*VIEW, "together"), "half", InvalidPlan, "3 groups have more than 16 tokens"),
        ((*VIEW, "together"), "key", PlanMismatch, "is not the view that was planned"),
        ((*VIEW, "together"), "other", FieldNotFound, "names .'other'."),
        ((*VIEW, "together"), 5, InvalidPlan, "together=5"),
        ((*VIEW, "split"), True, PlanMismatch, "split|differs"),
        ((*VIEW, "split"), "no", InvalidPlan, "split='no'"),
        ((*VIEW, "length"), 32, PlanMismatch, "is not the view that was planned"),
        ((*VIEW, "length"), DELETED, InvalidPlan, "length of a 'packed' view is None"),
        ((*VIEW, "kind"), "folded", InvalidPlan, "is of kind 'folded'; known are"),
        ((*VIEW, "kind"), ["packed"], InvalidPlan, r"is of kind \['packed'\]; known are"),
        (VIEW, 5, InvalidPlan, "view = 5, a value of type dict"),
        (DOCUMENTS, None, InvalidPlan, "documents of a 'packed' view is None"),
        ((*DOCUMENTS, "version"), [1], InvalidPlan, r"version of a 'version' view is \[1\]"),
        ((*DOCUMENTS, "fields"), None, InvalidPlan, "fields of a 'version' view is None"),
        ((*DOCUMENTS, "fields"), [TOKENS], InvalidPlan, "is packed as"),
        ((*DOCUMENTS, "where"), DELETED, InvalidPlan, "where of a 'version' view is None"),
        ((*DOCUMENTS, "fields"), ["../x"], FieldNotFound, "no field .../x"),
    ],
)
def test_edited_plan_is_refused(
    root: loader.Root,
    plan_body: Any,
    path: tuple[Any, ...],
    value: object,
    error: type[PenstockError],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        open_edited(root, edit_body(plan_body, path, value))


def test_other_values_without_a_token_are_another_plan(root: loader.Root, plan_body: Any) -> None:
    other = open_edited(root, edit_body(plan_body, ("pack", "pad_id"), 6))
    fills = set[int]()
    with loader.Loader(other, 0, 1, steps=3, framework="numpy") as batches:
        for batch in batches:
            is_empty = batch[f"{TOKENS}.segment_ids"] == 0
            fills.update(batch[TOKENS][is_empty].tolist())
    assert fills == {6}
