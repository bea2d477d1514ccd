"""The benchmark of packed sequences: each contestant delivers every token, and missed aims are bold."""

from pathlib import Path

from benchmarks import text, text_turn, together_fill
from benchmarks.contest import ROOT


def test_each_contestant_delivers_the_same_tokens(tmp_path: Path) -> None:
    n_documents = 1_000
    for kind in text.KINDS:
        text_turn.write(tmp_path / kind, kind, n_documents)
        text.store_sequences(tmp_path / kind)
        n_tokens = sum(int(mask.sum()) for _, mask in text_turn.documents(kind, n_documents))
        for contestant in (text_turn.GREEDY, text_turn.PENSTOCK, text_turn.LAID_OUT):
            task = text_turn.Task(
                contestant=contestant,
                folder=str(tmp_path),
                kind=kind,
                n_documents=n_documents,
                length=8_192,
            )
            measure = text_turn.measure_penstock
            if contestant == text_turn.LAID_OUT:
                measure = text_turn.measure_stored
            if contestant == text_turn.GREEDY:
                measure = text_turn.measure_greedy
            result = measure(task)
            assert result["tokens"] == n_tokens
            assert result["sequences"] > 0


def test_turn_runs_the_checkout_that_it_names(tmp_path: Path) -> None:
    task = {
        "contestant": text_turn.GREEDY,
        "folder": str(tmp_path),
        "kind": "even",
        "length": 2_048,
        "n_documents": 10,
    }
    result = text.turn(ROOT, task)
    assert result["checkout"] == str(ROOT)
    assert result["sequences"] == 2


def test_section_compares_round_by_round_and_marks_what_misses_its_aim() -> None:
    rows: text.Rows = {
        (2_048, "even"): {text.GREEDY: [16, 18], text.PENSTOCK: [50, 60], text.BEFORE: [150, 180]},
        (2_048, "long-tailed"): {text.GREEDY: [16, 18], text.PENSTOCK: [70, 70], text.BEFORE: [70, 140]},
        (8_192, "even"): {text.GREEDY: [60, 60], text.PENSTOCK: [200, 200]},
    }
    for row in rows.values():
        row |= {text.STORED: [6, 6.4], text.LAID_OUT: [20, 20]}
    arguments = text.parser().parse_args(["--rounds", "2", "--groups", "300", "--before", "elsewhere"])
    section = text.section(rows, arguments)
    assert "Made by `python -m benchmarks.text --rounds 2 --groups 300 --before CHECKOUT` on " in section
    assert "| 2,048; 200 to 400 tokens | 55 | 17 | 3.00 |" in section
    assert "| 2,048; 1 to 2,048 tokens, most below 200 | **70** | 17 | **1.50 (1.00-2.00)** |" in section
    assert "| 8,192; 200 to 400 tokens | 200 | 60 |  |" in section
    assert (
        "tokens only 6.2 us, 53 times as fast (≥ 50); with mask and layout 20.0 us, **16 times** as fast"
        in section
    )
    for draw in together_fill.DRAWS:
        assert f"- {draw.title}: 0.9" in section


def test_fill_is_counted_over_the_same_documents() -> None:
    for draw in together_fill.DRAWS:
        fill = together_fill.fill(draw, n_groups=300)
        assert 0.8 < fill.together <= fill.plain <= 1
