import json
from collections.abc import Callable
from pathlib import Path

import pytest

from assets.media import text
from assets.media.audit import audit
from assets.media.cutters import ALL_KINDS
from assets.media.policy import CutPolicy
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.text import cut_text
from assets.media.unit import Unit, Unusable
from tests.refusals import refusal


def cut(tmp_path: Path, data: bytes) -> list[Unit]:
    path = tmp_path / "raw"
    path.write_bytes(data)
    units = cut_text(str(path), tmp_path, CutPolicy())
    row = audit(str(path), sniff(data[:HEAD_BYTES]), ALL_KINDS)
    assert (row["kind"], row["n_documents"]) == ("text", len(units))
    assert row["n_chars"] == sum(len(unit.fields["txt"]) for unit in units)
    return units


def audit_refusal(tmp_path: Path, data: bytes) -> tuple[str, str]:
    path = tmp_path / "raw"
    path.write_bytes(data)
    with pytest.raises(Unusable) as caught:
        cut_text(str(path), tmp_path, CutPolicy())
    with pytest.raises(Unusable) as audited:
        audit(str(path), "text/plain", ALL_KINDS)
    assert str(audited.value) == str(caught.value)
    return caught.value.outcome, caught.value.code


def test_text_is_one_document_and_stays_as_it_is(tmp_path: Path) -> None:
    told = "# Títle\r\n\n  語 - emoji 🙂\t\n"
    (unit,) = cut(tmp_path, told.encode())
    assert unit.fields["txt"] == told
    assert (unit.start, unit.metadata["n_chars"]) == ("", len(told))
    assert cut(tmp_path, b"\xef\xbb\xbfbom")[0].fields["txt"] == "bom"


def test_every_line_of_jsonl_is_a_document(tmp_path: Path) -> None:
    lines = [{"text": "one\ntwo", "source": "a"}, {"content": "three"}, {"text": "  "}, {"text": "語"}]
    data = "\n".join(json.dumps(line) for line in lines[:2]) + "\n\n" + json.dumps(lines[2]) + "\r\n"
    units = cut(tmp_path, (data + json.dumps(lines[3], ensure_ascii=False)).encode())
    assert [unit.fields["txt"] for unit in units] == ["one\ntwo", "three", "語"]
    assert [unit.start for unit in units] == ["line 1", "line 2", "line 5"]  # a blank line, a blank document
    assert units[0].fields["json"] == {"raw": {"source": "a"}, "line": 1}


def test_line_without_a_text_may_hold_a_chat(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]},
        {"role": "assistant", "content": "4"},
    ]
    line = {"messages": messages, "tools": [{"name": "add"}], "id": "c1"}
    (unit,) = cut(tmp_path, json.dumps(line).encode())
    assert unit.fields["txt"] == "user: 2 + 2?\n\nassistant: 4"
    assert unit.fields["json"] == {
        "raw": {"id": "c1"},
        "line": 1,
        "messages": messages,
        "tools": line["tools"],
    }
    with_a_text = json.dumps({"text": "words", **line}).encode()
    assert "messages" not in cut(tmp_path, with_a_text)[0].fields["json"]


def test_long_line_is_refused_without_reading_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "raw"
    with open(path, "wb") as file:  # 100 MB that lie nowhere
        file.write(b'{"text": "')
        file.truncate(100_000_000)
    with refusal(Unusable, what="too_long", where="line 1") as caught:
        cut_text(str(path), tmp_path, CutPolicy())
    assert (caught.value.outcome, caught.value.code) == ("rejected", "too_long")
    with open(path, "wb") as file:
        file.write(b"word ")
        file.truncate(100_000_000)
    with refusal(Unusable, what="too_long", where="document", given=100_000_000):
        cut_text(str(path), tmp_path, CutPolicy())
    monkeypatch.setattr(text, "MAX_TEXT_BYTES", 30)
    assert audit_refusal(tmp_path, b'{"text": "a"}\n{"text": "' + b"b" * 30 + b'"}\n') == (
        "rejected",
        "too_long",
    )
    line = b'{"text": "%s"}' % (b"b" * 18)
    assert len(line) == 30
    assert len(cut(tmp_path, line)) == 1


def test_too_many_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MAX_DOCUMENTS", 2)
    assert len(cut(tmp_path, b'{"text": "a"}\n' * 2)) == 2
    assert audit_refusal(tmp_path, b'{"text": "a"}\n' * 3) == ("rejected", "too_many_documents")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b" \n\t \n", ("rejected", "blank")),
        (b'{"text": ""}\n{"text": " "}', ("rejected", "blank")),
        (b"caf\xe9", ("rejected", "not_utf8")),
        (b"cut inside a letter \xe8\xaa", ("rejected", "not_utf8")),
        (b'{"text": "a"}\n{"text": "\xff"}', ("rejected", "not_utf8")),
        (b'{"text": "\\ud800"}', ("rejected", "not_utf8")),
        (b'{"text": "a"}\n{"text": ', ("rejected", "bad_json")),
        (b'{"text": "a"}\n[1]', ("rejected", "bad_json")),
        (b'{"text": "a"}\n' + b"[" * 100_000, ("rejected", "bad_json")),
        (b'{\n  "text": "a"\n}\n', ("dropped", "no_text")),
        (b'{"caption": "a"}', ("dropped", "no_text")),
        (b'{"text": 3}', ("dropped", "no_text")),
        (b'{"messages": {}}', ("dropped", "no_text")),
        (b'{"messages": [{"content": " "}]}', ("rejected", "blank")),
        (b'{"messages": [{"role": "user", "content": "\\udc00"}]}', ("rejected", "not_utf8")),
    ],
)
def test_what_is_no_document(tmp_path: Path, data: bytes, expected: tuple[str, str]) -> None:
    assert audit_refusal(tmp_path, data) == expected


def test_text_is_not_taken_unasked(tmp_path: Path, make_wav: Callable[..., bytes]) -> None:
    (tmp_path / "raw").write_bytes(b"words")
    with pytest.raises(Unusable) as caught:
        audit(str(tmp_path / "raw"), "text/plain")
    assert (caught.value.outcome, caught.value.code) == ("dropped", "type_not_taken")
