"""What a card tells of a version's making, from records as the pipeline leaves them, and from less."""

import json

import pytest

import loader
from loader.errors import Corrupt
from penstock.card.build import build_card
from penstock.card.history import history
from tests.refusals import refusal


def record(**body):
    return {"counts": {"landed": 5, "used": 3, "rejected": 1, "dropped": 1}, "body": body}


MADE = {
    "policy": {"image": {"short_side_px": "256"}},
    "features": [{"name": "phash", "version": "2-ab", "parameters": {"bits": "64"}}],
    "filters": ["score at least 1"],
    "refused": [["rejected", "decode", "truncated", 1], ["dropped", "dedup", "duplicate", 1]],
}
CHECKS = [
    {"name": "expectations", "passed": True, "explanation": "11 of 11"},
    {"name": "audio_rate", "passed": False, "explanation": "half of it"},
]


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as made:
        made.create()
        yield made


def publish(root, number, samples=None, audit=None):
    """A version with one sample more, whose producer names these records."""
    producer = {"dagster_run_id": f"run {number}"}
    for name, stage, body in (("stage_record", "samples", samples), ("audit_record", "version", audit)):
        path = f"stages/d/{stage}/{number}/000000000001.json"
        if body is not None:
            producer[name] = path
            root.store.put_if_absent(path, body if isinstance(body, bytes) else json.dumps(body).encode())
    with root.write("d", producer=producer) as writer:
        writer.add(f"k{number}", {"cls": number})
    return writer.version


def test_batches_add_up_over_the_versions(root):
    publish(root, 1, record(made_of=MADE), {"body": {"checks": CHECKS}})
    made = history(root, publish(root, 2, record(made_of=MADE), {"body": {"checks": CHECKS[:1]}}))
    assert (made.versions, made.publishes, made.batches, made.accounted) == (2, 2, 2, 2)
    assert made.counts == {"landed": 10, "used": 6, "rejected": 2, "dropped": 2}
    assert made.refused == (("dropped", "dedup", "duplicate", 2), ("rejected", "decode", "truncated", 2))
    assert made.policies == (("image: short_side_px=256", 2),)
    assert made.featurizers == (("phash", "2-ab", "bits=64", 2),)
    assert made.filters == (("score at least 1", 2),)
    assert [(one.name, one.batches, one.failed, one.newest) for one in made.checks] == [
        ("audio_rate", 0, 1, "half of it"),
        ("expectations", 2, 0, "11 of 11"),
    ]
    assert made.run["dagster_run_id"] == "run 2"


def test_history_names_only_ancestors(root):
    first = publish(root, 1, record(made_of=MADE))
    publish(root, 2, record(made_of=MADE))
    made = history(root, first)
    assert (made.versions, made.batches) == (1, 1)
    assert made.run["dagster_run_id"] == "run 1"


def test_check_that_failed_is_a_warning(root):
    version = publish(root, 1, record(made_of=MADE), {"body": {"checks": CHECKS}})
    warnings = " ".join(build_card(root, version, n_examples=0).warnings)
    assert "The check audio_rate did not pass for 1 of 1 batches." in warnings


def test_record_of_before_says_what_it_does_not_know(root):
    version = publish(root, 1, record())
    card = build_card(root, version, n_examples=0)
    assert (card.history.batches, card.history.accounted) == (1, 0)
    assert card.history.counts["landed"] == 5
    assert "Which objects were refused" in " ".join(card.unknown)


def test_versions_that_were_collected_are_counted_as_unknown(root):
    publish(root, 1, record(made_of=MADE))
    version = publish(root, 2, record(made_of=MADE))
    root.retire("d@1", reason="old")
    root.store.delete_many([root.versions("d")[0].manifest])
    card = build_card(root, version, n_examples=0)
    assert (card.history.versions, card.history.publishes, card.history.batches) == (2, 1, 1)
    assert "How 1 of 2 versions were made is no longer known." in card.unknown


def test_record_that_is_gone_is_unknown(root):
    version = publish(root, 1, record(made_of=MADE), {"body": {"checks": CHECKS}})
    root.store.delete_many(version.manifest["producer"][name] for name in ("stage_record", "audit_record"))
    made = history(root, version)
    assert (made.publishes, made.batches, made.checks) == (1, 0, ())


@pytest.mark.parametrize(
    ("data", "what"),
    [(b"{", "stage record"), (b"[]", "stage record"), (b"{}", "body"), (b'{"body": 3}', "body")],
)
def test_damaged_record_is_named(root, data, what):
    version = publish(root, 1, data)
    where = f"{root.url}/stages/d/samples/1/000000000001.json"
    with refusal(Corrupt, what=what, where=where):
        history(root, version)
