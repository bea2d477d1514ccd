"""What is damaged JSON: one rule, one error, whoever calls and however deep."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.json_text import MAX_DEPTH, MOST, DamagedJson, parse_json, parse_json_object

DAMAGED: dict[str, tuple[bytes | str, str]] = {
    "half a character": (rb'{"a": "\ud800"}', "half a character"),
    "half a character in a key": (rb'{"\uDFFF": 1}', "half a character"),
    "half a character as bytes": (b'"\xed\xa0\x80"', "utf-8"),
    "half a character in text": ('{"a": "\ud800"}', "half a character"),
    "no UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "beyond a float": (b'{"step": 1e999}', "1e999 is beyond"),
    "below a float": (b'{"step": -1e999}', "-1e999 is beyond"),
    "NaN": (b"[NaN]", "NaN is not a finite number"),
    "infinity": (b"[-Infinity]", "-Infinity is not a finite number"),
    "above 64 bits": (b"%d" % (MOST + 1), "is not from"),
    "below 64 bits": (b"%d" % (-(2**63) - 1), "is not from"),
    "digits without end": (b"9" * 10_000, "is not from"),
    "deep": (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "more than 64"),
    "as deep as Python's own limit": (b'{"a":' * 100_000, "more than 64"),
    "objects and arrays": (b'[{"a":' * 33 + b"0" + b"}]" * 33, "more than 64"),
    "nothing": (b"", "Expecting value"),
    "no JSON": (b"{", "Expecting property name"),
    "more behind it": (b"{} {}", "Extra data"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_damaged_raises_one_error(name: str) -> None:
    data, said = DAMAGED[name]
    with pytest.raises(DamagedJson, match=said):
        parse_json(data)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -(2**63), MOST, 0.5, 1e308, None, True]},
        "😀 狗",
        {"😀": {"": []}},
        "1e999 NaN 99999999999999999999999",
        "[" * 200,
        [[]] * 1000,
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_is_sound_is_taken(value: Any, encoding: str) -> None:
    for ascii_only in (True, False):  # a pair of escapes is one character
        assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode(encoding)) == value


def test_as_deep_as_is_accepted() -> None:
    found = parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (found,) = found
    assert found == []


@pytest.mark.parametrize("data", [b"[]", b"3", b"null", b'"a"'])
def test_another_type_than_an_object(data: bytes) -> None:
    with pytest.raises(DamagedJson, match="expected an object"):
        parse_json_object(data)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]:,"\\ud8e9.-Na0', max_size=40).map(str.encode))
def test_any_bytes_are_a_value_that_can_be_written_again_or_damaged(data: bytes) -> None:
    try:
        value = parse_json(data)
    except DamagedJson:
        return
    assert parse_json(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) == value


OWN = {
    "penstock/formats/streaming_epoch.py": "a process of its own, told by this version's code over a pipe",
    "loader/modalities/text.py": "a field's value is whatever was written, NaN and large integers included",
    "loader/dataset/labels/rows.py": "labels may be NaN; half characters are refused with their column",
    "loader/dataset/writing/spill.py": "a scratch file of the same process",
    "loader/dataset/publishing/commit.py": "bytes that were made a line above",
    "loader/dataset/log/entries.py": "canonical JSON alone is an entry",
    "loader/dataset/log/snapshots.py": "a hint's checksum is compared",
    "loader/dataset/tables/manifest.py": "a manifest's SHA-256 is compared",
    "loader/storage/cloud/credentials.py": "a file of the operator's own",
    "penstock/upkeep/doctor/gcs_bucket.py": "an option of the operator's own",
    "penstock/compute/engines/kubernetes_api.py": "the cluster's own API server, whose damage is silence of the engine",
    "penstock/compute/engines/ray_driver.py": "an argument of the command line, from this version's engine",
    "penstock/compute/engines/ray_engine.py": "the cluster's own head, whose damage is silence of the engine",
    "penstock/verbs/verb.py": "an argument of the command line",
    "penstock/view/replays/metrics_file.py": "a file that the caller named, whose numbers may be NaN",
    "penstock/upkeep/takedown/derived.py": "a takedown looks at whatever can be read",
    "dagster_project/sensors/alerting.py": "the sensor's own cursor",
    "assets/media/text.py": "a document's other fields are not kept",
    "assets/featurizers/models/networks.py": "weights that the operator named",
    "dagster_project/sensors/release.py": "the sensor's own cursor",
    "penstock/compute/runner_process.py": "an argument of the command line",
    "penstock/compute/pool/answers.py": "values may be NaN; whatever cannot be read is that worker's answer",
}
"""Who reads JSON by itself, and why nobody else is stopped by what it reads."""


def test_every_reader_of_what_others_write_has_the_one_rule() -> None:
    here = Path(__file__).parents[1]
    packages = ("loader", "penstock", "resources", "assets", "dagster_project")
    files = [file for package in packages for file in (here / package).rglob("*.py")]
    reading = {str(file.relative_to(here)) for file in files if "json.load" in file.read_text()}
    assert reading == OWN.keys()
