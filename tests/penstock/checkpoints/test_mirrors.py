"""Checkpoints under a root with mirrors, which have none: the primary is asked alone, and its errors are raised."""

import json

import pytest
import torch

import loader
from loader.errors import Forbidden, StoreError, Transient
from penstock.checkpoints import Checkpoints, marker, retention
from penstock.checkpoints.listing import check_objects, list_steps
from tests.refusals import refusal


@pytest.fixture
def root(tmp_path):
    """A root whose mirror, as `penstock migrate` makes one, has no checkpoints; the primary has steps 10, 20 and 30 of
    run "r"."""
    loader.Root(tmp_path / "primary").create()
    said = json.loads((tmp_path / "primary" / "penstock.json").read_bytes())
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "penstock.json").write_text(json.dumps({**said, "mirror_of": "the primary"}))
    root = loader.Root(tmp_path / "primary", mirrors=[tmp_path / "mirror"])
    with Checkpoints(root, "r") as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, {"w": torch.full((4,), float(step))})
    return root


@pytest.fixture
def fail(root, monkeypatch):
    """fail(error): the primary raises it whatever it is asked; fail(None): it is up again."""

    def fail(error):
        for verb in ("list", "get", "get_range", "read_into", "head"):
            if error is None:
                monkeypatch.undo()
            else:
                monkeypatch.setattr(root.store.primary, verb, raise_error(error))

    def raise_error(error):
        def call(*_, **__):
            raise error("the primary: told so", what="primary")

        return call

    return fail


def test_primary_that_is_down_is_not_a_run_without_checkpoints(root, fail):
    fail(Transient)
    checkpoints = Checkpoints(root, "r")
    for ask in (
        checkpoints.steps,
        checkpoints.latest,
        lambda: checkpoints.at(20),
        lambda: checkpoints.load({"w": torch.zeros(4)}),
        lambda: checkpoints.save(40, {"w": torch.zeros(4)}),
        lambda: list(list_steps(root.store)),
    ):
        with refusal(Transient, what="primary"):
            ask()
    fail(None)
    assert checkpoints.load({"w": torch.zeros(4)}).step == 30
    assert [one.step for one in list_steps(root.store)] == checkpoints.steps() == [10, 20, 30]
    assert [wrong for _, _, wrong in check_objects(root.store, [checkpoints.at(30)])] == ["", ""]


@pytest.mark.parametrize("error", [Forbidden, Transient, StoreError])
def test_listing_that_fails_deletes_no_checkpoint(root, fail, monkeypatch, caplog, error):
    list_steps = retention.steps

    def failing(store, run):
        fail(error)
        try:
            return list_steps(store, run)
        finally:
            fail(None)

    checkpoints = Checkpoints(root, "r", keep_last=3)
    with monkeypatch.context() as once:
        once.setattr(retention, "steps", failing)
        checkpoints.save(40, {"w": torch.full((4,), 40.0)})
    assert "told so" in caplog.text
    for step in (10, 20, 30, 40):
        found = {"w": torch.zeros(4)}
        checkpoints.load(found, step=step)
        assert torch.equal(found["w"], torch.full((4,), float(step)))
    checkpoints.save(50, {"w": torch.zeros(4)})
    assert checkpoints.steps() == [30, 40, 50]


def test_commit_behind_which_the_primary_fails_says_that_it_is_one(root, fail, monkeypatch):
    create = root.store.primary.put_if_absent

    def last_words(key, data):
        create(key, data)
        fail(Transient)

    checkpoints = Checkpoints(root, "r")
    monkeypatch.setattr(root.store.primary, "put_if_absent", last_words)
    with refusal(Transient, what="primary") as caught:
        checkpoints.save(40, {"w": torch.zeros(4)})
    assert any("step 40 of run 'r' is committed" in note for note in caught.value.__notes__)
    fail(None)
    assert checkpoints.steps() == [10, 20, 30, 40]
    assert marker.read(root.store.primary, "r", 40).step == 40
