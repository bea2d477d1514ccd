"""The page of a sample: the main field first, facts beside it, and what few people need folded."""

import re

import numpy as np
import pytest

import loader
from penstock.view.inspect.sample_record import MOST_LEADING, sample_record
from tests.view.conftest import photo
from tests.view.test_web import Served


@pytest.mark.parametrize(
    ("fields", "main"),
    [
        ({"cls": 1, "caption.txt": "a cat", "jpg": photo(1)}, "jpg"),
        ({"cls": 1, "meta.json": {"a": 1}, "caption.txt": "a cat"}, "caption.txt"),
        ({"cls": 1, "state.npy": np.arange(40.0)}, "state.npy"),
        ({"bin": b"\\x00\\xff", "meta.json": {"a": 1}}, "meta.json"),
    ],
)
def test_main_field_comes_first(root, fields, main):
    with root.write("mixed") as writer:
        writer.add("k", fields)
    record = sample_record(root.open("mixed@1"), 0)
    assert record.fields[0].field == main
    assert {one.field for one in record.fields} == set(fields)


def test_facts_beside_a_sample_are_few_and_the_usual_ones_lead(root):
    columns = {f"c{i:02d}": i for i in range(20)}
    with root.write("wide") as writer:
        for i in range(2):
            metadata = {**columns, "label": "cat", "phash": "0" * 16, "caption": ""}
            writer.add(f"k{i}", {"cls": i}, metadata=metadata, source={"split": "train", "raw_uri": "s3://a"})
    record = sample_record(root.open("wide@1"), 0)
    assert list(record.leading) == ["label", "split", *(f"c{i:02d}" for i in range(MOST_LEADING - 2))]
    assert record.leading["label"] == "cat"


def test_column_with_a_mark_stands_beside_the_sample(root):
    with root.write("far") as writer:
        for i in range(60):
            metadata = {f"c{n:02d}": i for n in range(12)} | {"z": 1000.0 if i == 7 else float(i % 3)}
            writer.add(f"k{i:02d}", {"cls": i}, metadata=metadata)
    version = root.open("far@1")
    ordinal = version.keys(np.arange(60)).index("k07")
    assert next(iter(sample_record(version, ordinal).leading)) == "z"


def test_what_few_people_need_is_folded(root, tmp_path):
    with root.write("one") as writer:
        writer.add("k", {"jpg": photo(1)}, metadata={"label": "cat"}, source={"raw_uri": "s3://raw/1.jpg"})
    with Served(tmp_path / "root", recipe=None) as served:
        page = served.get("/v/one/1/s/0").text
    folds = re.findall(r"<details class=\"fold.*?</details>", page, re.DOTALL)
    texts = {re.search("<summary>([A-Z][a-z ]+)", fold)[1].strip(): fold for fold in folds}
    assert set(texts) == {"Columns", "Stored bytes", "Provenance", "Raw object"}
    assert "CRC-32C" in texts["Stored bytes"]
    assert "stored/jpg" in texts["Stored bytes"]
    assert "s3://raw/1.jpg" in texts["Provenance"]
    assert page.index('class="side"') < page.index("Stored bytes")
    with pytest.raises(loader.errors.InvalidRuntime):
        sample_record(root.open("one@1"), 1)
