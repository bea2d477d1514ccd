"""A packed sequence by document: its ribbon, columns and totals, and the loss at its boundaries."""

import re

import numpy as np
import pytest

import loader
from penstock.view.inspect import packed_documents
from penstock.view.open_data import OpenData
from tests.view.rollouts.rig import find_ordinal, write_rollouts
from tests.view.test_web import Served

LENGTH = 128
COLUMNS = ("reward", "group_id", "n_sampled", "ordinal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A root with the runs `columns`, of whole rollouts with columns, and `cut`, of rollouts that are split."""
    folder = tmp_path_factory.mktemp("packed") / "root"
    with loader.Root(folder) as root:
        version = write_rollouts(root)
        view = version.where("n_tokens < 100").select("tokens.npy", "mask.npy")
        beside = {"mask.npy": 0}
        whole = loader.pack("tokens.npy", LENGTH, beside=beside, split=False, columns=COLUMNS)
        cut = loader.pack("tokens.npy", LENGTH, beside=beside)
        every = version.select("tokens.npy", "mask.npy")
        for run, source, pack in (("columns", view, whole), ("cut", every, cut)):
            plan = loader.plan({"rl": source}, seed=7, global_batch=2, boundary="mask", pack=pack)
            trail = loader.Trail(root, run, ranks="all")
            for rank in range(2):
                with loader.Loader(
                    plan, rank, 2, steps=2, workers=0, framework="numpy", trail=trail
                ) as batches:
                    list(batches)
    return folder


def run_plan(root, run):
    return loader.open_plan(root, loader.read_trail(root, run).starts[0].plan)


def read_batch(root, run, step):
    with loader.Loader(run_plan(root, run), 0, 1, workers=0, framework="numpy", steps=step + 1) as batches:
        return batches.batch_at(step)


@pytest.mark.parametrize("run", ["columns", "cut"])
def test_documents_are_those_of_the_batch(folder, run):
    with loader.Root(folder) as root:
        batch = read_batch(root, run, 1)
        version = root.open("rl@2")
        opened = OpenData(root)
        for slot in range(2):
            record, _ = opened.slot_record(opened.training(run), 1, slot)
            packed = record.packed
            segments = batch["tokens.npy.segment_ids"][slot]
            assert packed.n_tokens == np.count_nonzero(segments)
            assert [one.segment for one in packed.documents] == sorted(set(segments.tolist()) - {0})
            for one in packed.documents:
                places = np.flatnonzero(segments == one.segment)
                assert places.tolist() == list(range(one.first, one.first + one.n_tokens))
                assert one.n_sampled == np.count_nonzero(batch["mask.npy"][slot][places])
                assert one.ordinal == find_ordinal(version, one.key)
                assert not one.is_masked
                assert not one.counts_first
                for name in one.columns:
                    assert one.columns[name] == str(batch[name][slot][one.segment - 1])
            if run == "columns":
                assert {tuple(one.columns) for one in packed.documents} == {COLUMNS}
        opened.close()


def test_step_has_the_totals_of_all_ranks(folder, monkeypatch):
    with loader.Root(folder) as root:
        batch = read_batch(root, "columns", 1)
        opened = OpenData(root)
        training = opened.training("columns")
        for rank in range(2):
            assert opened.step_record(training, 1, rank, 2).totals == batch.totals
        monkeypatch.setattr(packed_documents, "MOST_PIECES", 1)
        totals = opened.step_record(training, 1, 0, 2).totals
        assert totals == {name: batch.totals[name] for name in ("documents", "tokens")}
        opened.close()


def test_quarantined_document_is_masked(root):
    version = write_rollouts(root, steps=1)
    view = version.where("n_tokens < 100").select("tokens.npy")
    pack = loader.pack("tokens.npy", LENGTH, split=False, columns=("reward",))
    plan = loader.plan({"rl": view}, seed=7, global_batch=2, boundary="mask", pack=pack)
    plan = plan.quarantined({"rl": ["0/0/1"]}, 0)
    plan.save(root)
    opened = OpenData(root)
    n_sequences = len(plan.sources["rl"].view)
    masked = []
    for step in range(-(-n_sequences // 2)):
        for slot in range(min(2, n_sequences - 2 * step)):
            record, _ = opened.slot_record(opened.training(plan.hash), step, slot)
            masked += [one.key for one in record.packed.documents if one.is_masked]
    assert masked == ["0/0/1"]
    opened.close()


def test_pages_link_each_document_and_offer_no_exclusion_of_a_sequence(folder):
    served = Served(folder, recipe=None, writes=True)
    try:
        page = served.get("/r/columns/0/0")
        assert page.status_code == 200
        record = served.get("/r/columns/0/0.json").json()
        documents = record["packed"]["documents"]
        links = re.findall(r'href="[./]*v/rl/2/s/(\d+)"', page.text)
        assert sorted(map(int, links)) == sorted(2 * [one["ordinal"] for one in documents])
        assert page.text.count('class="ribbon"') == 1
        assert page.text.count('data-press="x"') == 1, "only the basket's"
        for ordinal in {one["ordinal"] for one in documents}:
            assert served.get(f"/v/rl/2/s/{ordinal}").status_code == 200
        step = served.get("/r/columns/0?world=2&rank=0")
        assert "over all ranks" in step.text
        assert "<img" not in step.text  # arrays of one dimension are not drawn
        assert "data-key" not in step.text
    finally:
        served.close()


def test_rollout_page_shows_its_packed_sequence(folder):
    served = Served(folder, recipe=None)
    try:
        document = served.get("/r/columns/1/1.json").json()["packed"]["documents"][-1]
        path = f"/v/rl/2/s/{document['ordinal']}"
        page = served.get(path).text
        trainings = served.get(f"{path}.json").json()["sample"]["trainings"]
        held = next(one for one in trainings if one["slots"])
        last = held["slots"][-1]
        at = f"/r/{held['training']}/{last['step']}/{last['slot']}"
        packed = served.get(f"{at}.json").json()["packed"]
        (ribbon,) = re.findall(r'<figure class="ribbon">.*?</figure>', page, re.DOTALL)
        links = re.findall(r'href="[./]*v/rl/2/s/(\d+)"', ribbon)
        assert list(map(int, links)) == [one["ordinal"] for one in packed["documents"]]
        (current,) = re.findall(r's/(\d+)" aria-current="page"', ribbon)
        assert int(current) == document["ordinal"]
        assert f'href="../../../..{at}"' in page
        assert 'class="documents"' not in page
    finally:
        served.close()
