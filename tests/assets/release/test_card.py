"""The card that the pipeline leaves with a version: its making told, Dagster's page small, the release safe."""

import json
from pathlib import Path

import dagster as dg
import pytest

from assets.media.policy import CutPolicy, ImagePolicy, policy_words
from assets.release import version_page as card_stage
from assets.release.version_page import card_markdown
from assets.samples.samples_asset import batch_provenance, filter_words
from assets.spec import DatasetSpec, Feature, Filter
from loader.dataset.names import card_folder
from penstock.card.build import read_card, reason_class
from penstock.stages import StageRecord

SPEC = DatasetSpec(
    name="demo",
    policy=CutPolicy(image=ImagePolicy(short_side_px=48)),
    features=(Feature(name="picture"), Feature(name="tokens", parameters={"image": "caption.txt"})),
    filters=(Filter(column="width_px", minimum=60),),
    splits={"train": 0.5, "validation": 0.5},
    max_reject_rate=0.5,
)
CAPTION = "A cat | <script>alert(1)</script> [x](https://evil.example)"


def version_metadata(result: dg.ExecuteInProcessResult) -> dict[str, dg.MetadataValue]:
    """The metadata of the version asset."""
    events = [one for one in result.all_events if one.is_step_materialization]
    (event,) = [one for one in events if one.asset_key == dg.AssetKey(["demo", "version"])]
    return dict(event.materialization.metadata)


@pytest.fixture
def photos(tmp_path: Path, make_jpeg) -> Path:
    """Three photos, one of them too narrow for the filter, one cut off, one there twice."""
    place = tmp_path / "photos"
    files = {
        "cats/a.jpg": make_jpeg(80, 60),
        "cats/narrow.jpg": make_jpeg(48, 64),
        "dogs/b.jpg": make_jpeg(90, 60),
        "dogs/broken.jpg": make_jpeg(100, 60)[:400],
        "dogs/again.jpg": make_jpeg(80, 60),
    }
    origins = {
        "cats/a.jpg": {"text": CAPTION, "licence": "CC-BY-4.0"},
        "cats/narrow.jpg": {"licence": "CC-BY-4.0"},
        "dogs/b.jpg": {"title": "A dog"},
    }
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    (place / "_origins.json").write_text(json.dumps(origins))
    return place


def test_release_leaves_a_card_and_does_not_depend_on_it(run, root, arrive, photos, monkeypatch):
    batch = arrive(photos)
    assert run("ingest", SPEC, batch, photos).success
    released = run("release", SPEC)
    assert released.success
    version = root.open("demo")
    body = read_card(root.store, version)
    assert (body["samples"], body["excluded_samples"]) == (2, 1)
    assert body["excluded"]["counts"] == [{"name": "width_px below 60", "n": 1}]
    made = body["history"]
    assert (made["versions"], made["batches"], made["accounted"]) == (1, 1, 1)
    assert made["objects"]["landed"] == 5
    refused = {(one["outcome"], one["stage"], one["code"]): one["n"] for one in made["refused"]}
    assert refused.pop(("dropped", "samples", "filtered")) == 1
    assert refused.pop(("dropped", "dedup", "duplicate")) == 1
    assert [(outcome, n) for (outcome, _, _), n in refused.items()] == [("rejected", 1)]
    assert [one["policy"].startswith("image: ") for one in made["policies"]] == [True]
    assert "short_side_px=48" in made["policies"][0]["policy"]
    features = {one["name"]: one for one in made["featurizers"]}
    assert set(features) == {"picture", "tokens"}
    assert features["picture"]["version"] == Feature(name="picture").build().version
    assert features["tokens"]["parameters"] == "image=caption.txt"
    assert made["filters"] == [{"filter": "width_px at least 60", "batches": 1}]
    assert {check["name"]: check["batches"] for check in made["checks"]} == dict.fromkeys(
        ("expectations", "blank", "drift", "agreement", "splits", "protected"), 1
    )
    assert made["run"]["batch"] == batch
    assert body["licences"]["unknown"] == 1

    page = version_metadata(released)
    assert "**The licence of 1 of 2 samples is unknown" in page["card"].value
    html = Path(page["card_html"].value)
    assert html.is_relative_to(root.url)
    text = html.read_text()
    assert "<script" not in text
    assert "alert(1)" in text
    assert page["distributions"].value.startswith("![")
    assert page["examples image"].value.startswith("![image examples](data:image/jpeg;base64,")
    sizes = [len(str(value.value)) for value in page.values()]
    assert max(sizes) <= 60_000
    assert sum(sizes) <= 250_000

    # Another release: the card is there, and is read.
    folder = Path(root.url) / card_folder("demo", 1, version.id)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def raise_if_called(*_: object) -> None:
        raise AssertionError("the card was there")

    monkeypatch.setattr(card_stage, "build_card", raise_if_called)
    again = run("release", SPEC)
    assert again.success
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert "card_html" in version_metadata(again)

    (folder / "card.json").write_bytes(b"{")
    damaged = run("release", SPEC)
    assert damaged.success
    said = version_metadata(damaged)["card"].value
    assert said.startswith("the dataset card could not be made: Corrupt: ")
    assert "penstock card demo@1 --save" in said
    assert version_metadata(damaged)["version"].value == "demo@1"


@pytest.mark.parametrize(
    ("one", "value", "reason", "words"),
    [
        (Filter(column="psnr_db", minimum=30), 12.5, "psnr_db below 30", "psnr_db at least 30"),
        (Filter(column="x", minimum=0, maximum=0.5), 7, "x above 0.5", "x at least 0 and at most 0.5"),
        (
            Filter(column="label", allowed=frozenset(("dog", "cat"))),
            "a cow is above 3",
            "label not one of cat, dog",
            "label one of cat, dog",
        ),
        (Filter(column="lufs", required=True), None, "lufs is unknown", "lufs, unknown not allowed"),
    ],
)
def test_filters_in_words(one, value, reason, words):
    """What a filter says of a sample is counted without the sample's own value: the two are written apart."""
    assert reason_class(one.reason(value)) == reason
    assert filter_words(one) == words


def test_batch_records_its_provenance():
    units = StageRecord(
        dataset="demo",
        stage="units",
        partition="b",
        verdict="published",
        run_id="r",
        code_version="1",
        fingerprint="",
        body={"policy": policy_words(CutPolicy(), ["image", "text", "image"])},
    )
    objects = [
        {"outcome": outcome, "stage": "probe", "code": "x"} for outcome in ("used", "rejected", "rejected")
    ]
    made = batch_provenance(SPEC, units, [], objects)
    assert list(made["policy"]) == ["image"]
    assert all(isinstance(value, str) for value in made["policy"]["image"].values())
    assert made["refused"] == [["rejected", "probe", "x", 2]]
    assert made["features"] == []


def test_page_escapes():
    body = {
        "splits": {"a|b": 1},
        "warnings": ["<b>[x](https://evil.example)"],
        "kinds": [{"name": "|", "samples": 1, "splits": {"a|b": 1}, "hours": None}],
        "excluded_samples": 1,
    }
    told = card_markdown(body)
    assert "<b>" not in told
    assert "[x](" not in told
    assert "a|b" not in told
