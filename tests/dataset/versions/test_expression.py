"""What an SQL expression of a plan or view may hold: values of a row, and nothing that reads, asks or runs."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import polars as pl
import pytest

import loader
from loader.dataset.versions import expression
from loader.errors import FieldNotFound
from loader.limits import MAX_EXPRESSION_COPIES, MAX_EXPRESSION_WORDS, MAX_MADE_CHARACTERS
from tests.refusals import refusal


@pytest.fixture(scope="module")
def version():
    with loader.Root("memory://expressions").write("d") as writer:
        for i in range(6):
            kind = "select a from b" if i % 2 else "it's \\"
            writer.add(f"k{i}", {"cls": i, "ids.npy": np.arange(i)}, metadata={"w": i, "kind": kind})
    return writer.version


@pytest.fixture
def table_server():
    """(URL of a table that a server on this machine has, the requests it saw)."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            seen.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


QUERIES = {
    "w IN (SELECT w FROM read_csv('{}'))": "SELECT",
    "w IN (select w from read_csv('{}'))": "SELECT",
    "w IN (\u017felect w from read_csv('{}'))": "SELECT",
    "w IN ( FROM read_csv('{}'))": "FROM",
    "w IN (WITH t AS (FROM read_csv('{}')) FROM t)": "WITH",
    "w > (SELECT min(w) FROM read_csv('{}'))": "SELECT",
    "w > ANY (FROM read_csv('{}'))": "FROM",
    "EXISTS (FROM read_csv('{}'))": "exists(...)",
    "EXTRACT(year FROM (FROM read_csv('{}'))) = 1": "FROM",
    "kind = '\\' OR w IN (FROM read_csv('{}'))": "FROM",
    "kind = '' OR w IN (FROM read_csv('{}')) OR kind = ''": "FROM",
    "\"w\" = 1 OR w IN (FROM read_csv('{}'))": "FROM",
    "w IN (1, 2) OR read_csv('{}')": "read_csv(...)",
    "\"read_csv\"('{}') = w": '"read_csv"(...)',
}
"""Query -> its part that is refused."""


@pytest.mark.parametrize("query", QUERIES)
def test_no_file_is_read_and_nobody_is_asked(version, table_server, tmp_path, query):
    (tmp_path / "private.csv").write_text("w\n3\n")
    url, seen = table_server
    for place in (str(tmp_path / "private.csv"), str(tmp_path / "none.csv"), f"{url}/none.csv"):
        predicate = query.format(place)
        with refusal(FieldNotFound, what=f"where({predicate!r})", given=QUERIES[query]):
            len(version.where(predicate))
    assert seen == []


def test_wherever_an_expression_stands(version, tmp_path):
    (tmp_path / "private.csv").write_text("w\n3\n")
    reads = f"(SELECT max(w) FROM read_csv('{tmp_path / 'private.csv'}'))"
    view = version.select("cls")
    ids = view.select("ids.npy")
    bucket = f"bucket({reads!r})"
    for purpose, make in (
        (bucket, lambda: view.split(reads, None)),
        (f"bucket {f'0..{reads}'!r}", lambda: view.split("w", ["0", reads])),
        (f"pack(lengths={reads!r})", lambda: ids.packed(loader.pack("ids.npy", length=4, lengths=reads))),
        (bucket, lambda: loader.plan({"d": view}, seed=1, global_batch=2, bucket_by=loader.bucket(reads))),
    ):
        with refusal(FieldNotFound, what=purpose, given="SELECT"):
            make()


def test_stored_plan_does_not_read(tmp_path):
    root = loader.Root(str(tmp_path / "root"))
    with root.write("d") as writer:
        writer.add("k", {"cls": 1}, metadata={"w": 3})
    saved = loader.plan({"d": writer.version.where("w = 3")}, seed=1, global_batch=1).save(root)
    (tmp_path / "private.csv").write_text("w\n3\n")
    file = tmp_path / "root" / "plans" / f"{saved}.json"
    stored = f"w IN (FROM read_csv('{tmp_path}/private.csv'))"
    file.write_text(file.read_text().replace("w = 3", stored))
    with refusal(FieldNotFound, what=f"where({stored!r})", given="FROM"):
        loader.open_plan(root, saved)


COLUMN = "a column in double quotes"


@pytest.mark.parametrize(
    ("text", "given", "accepted"),
    [
        ("w IN (SELECT 1)", "SELECT", COLUMN),
        ("w IN (FROM t)", "FROM", COLUMN),
        ("w IN (VALUES (1))", "VALUES", COLUMN),
        ("w > 1 -- all", "--", "neither comments nor prefixes"),
        ("w /* all */ > 1", "/*", "neither comments nor prefixes"),
        ("kind = $$x$$", "$", "neither comments nor prefixes"),
        ("kind = E'x'", "E'", "neither comments nor prefixes"),
        ("kind = U&'x'", "U&'", "neither comments nor prefixes"),
        ("kind = 'x", "'", "a closing quote"),
        ('"w > 1', '"', "a closing quote"),
        ("UNNEST(w) > 1", "unnest(...)", "a function that may be called"),
        ("w = 1 OR " * 2000 + "w = 2", 6002, MAX_EXPRESSION_WORDS),
        (["w = 1"], ["w = 1"], "text"),
    ],
)
def test_what_is_refused_says_why(version, text, given, accepted):
    with refusal(FieldNotFound, what="where", given=given, accepted=accepted):
        expression.parse_expression(pl, text, "where")


@pytest.mark.parametrize("text", ['"*"', '"*" > 1', "\"^k.*$\" = 'a'", '"^.*$"'])
def test_pattern_of_columns_is_refused(version, text):
    """polars takes these names for patterns, and would read whichever columns they match."""
    with refusal(FieldNotFound, what=f"where({text!r})", given=text, accepted="one column"):
        version.where(text)


@pytest.mark.parametrize(
    ("predicate", "n"),
    [
        ("kind = 'select a from b'", 3),
        ("kind LIKE '%(select%' OR kind = 'it''s \\'", 3),
        ("kind = 'it''s \\' AND w < 3", 2),
        ("kind IS DISTINCT FROM 'x'", 6),
        ("SUBSTRING(kind FROM 1 FOR 2) = 'it'", 3),
        ("TRIM(BOTH '\\' FROM kind) = 'it''s '", 3),
        ("EXTRACT(year FROM CAST('2020-01-01' AS DATE)) = 2020", 6),
        ("UPPER(kind) LIKE 'S%' AND COALESCE(w, 0) NOT IN (1, 2)", 2),
        ('CASE WHEN ("w") > (2) THEN (TRUE) ELSE (FALSE) END', 3),
        ("CAST(w AS DECIMAL(4, 2)) >= (w)::double AND NOT (w BETWEEN (2) AND (3))", 4),
        ("w > AVG(w) OVER (PARTITION BY (kind))", 2),
        ("REGEXP_LIKE(kind, '^(a|a)*$') OR kind ~ '(it)+'", 3),
        ("w IN (" + ", ".join(map(str, range(3, 20_000))) + ")", 3),
    ],
)
def test_values_of_a_row_are_compared(version, predicate, n):
    assert len(version.where(predicate)) == n


def nest_expression(form, times, inner="w"):
    for _ in range(times):
        inner = form.format(inner)
    return inner


NUMBER = "a whole number"
MOST = MAX_MADE_CHARACTERS


@pytest.mark.parametrize(
    ("text", "where", "given", "accepted"),
    [
        ("length(lpad(kind, 2000000000, 'x')) > 3", "lpad(...)", 2_000_000_000, MOST),
        ("length(rpad(kind, 513, 'x')) > 3", "rpad(...)", 513, MOST),
        ("lpad(kind, w * 1000, 'x') = 'a'", "argument 2 of lpad(...)", "w * 1000", NUMBER),
        ("lpad(kind, (2000000000), 'x') = 'a'", "argument 2 of lpad(...)", "(", NUMBER),
        ("lpad(kind, 2e9, 'x') = 'a'", "argument 2 of lpad(...)", "2 e9", NUMBER),
        (nest_expression("replace({}, 'x', 'xxxxxxxxxx')", 3, "kind"), "replace(...)", 1_000, MOST),
        ("replace(kind, 'a', kind) = 'a'", "argument 3 of replace(...)", "kind", "a text in single quotes"),
        ("regexp_replace(kind, '(.*)', '" + "$1" * 300 + "') = 'a'", "regexp_replace(...)", 600, MOST),
        ("concat(" + ", ".join(["kind"] * 600) + ") = 'a'", "concat(...)", 600, MOST),
        (
            "concat_ws('" + "-" * 100 + "', " + ", ".join(["kind"] * 9) + ") = 'a'",
            *("concat_ws(...)", 809, MOST),
        ),
        (" || ".join(["kind"] * 600) + " = 'a'", "|| or +", 601, MOST),
        (" + ".join(["kind"] * 600) + " = 'a'", "|| or +", 601, MOST),
        (
            "array_to_string(string_to_array(kind, ''), '" + "-" * 600 + "') = 'a'",
            *("array_to_string(...)", 601, MOST),
        ),
        (" AND ".join(["lpad(kind, 100, 'x') = 'a'"] * 6), "all functions together", 600, MOST),
        ("concat(string_agg(kind, ','), kind) = 'a'", "concat(...)", 1_000_000_001, MOST),
        ("string_agg(kind, ',') || kind = 'a'", "|| or +", 1_000_000_002, MOST),
        ("upper(string_agg(kind, ',')) = 'a'", "upper(...)", 1_000_000_000, MOST),
        (
            "string_agg(kind, ',') OVER (PARTITION BY w) = 'a'",
            *("OVER", "array_agg, listagg or string_agg", None),
        ),
    ],
)
def test_expression_that_makes_too_much_text_is_refused(text, where, given, accepted):
    """One `lpad` of 26 letters ended the process."""
    with refusal(FieldNotFound, what="where", where=where, given=given, accepted=accepted):
        expression.parse_expression(pl, text, "where")


@pytest.mark.parametrize(
    "text",
    [
        nest_expression("({} BETWEEN 1 AND 2)", 30),
        "w" + " BETWEEN 1 AND 2" * 30,
        nest_expression("(CASE {} WHEN 1 THEN 2 WHEN 2 THEN 3 ELSE 4 END)", 20),
        nest_expression("nullif({}, 1)", 30),
        nest_expression("left('a', {})", 12),
        nest_expression("right({}, 2)", 12, "kind"),
        nest_expression("split_part({}, 'a', 2)", 12, "kind"),
        nest_expression("array_get({}, 1)", 12),
        nest_expression("string_agg({})", 12, "kind"),
        nest_expression("corr({}, 2)", 14),
        nest_expression("substr(kind, {}, 'a')", 14, "w"),
    ],
)
def test_expression_that_polars_copies_without_end_is_refused(text):
    """Each level doubles the expression at least: thirty nested BETWEEN never ended."""
    with refusal(FieldNotFound, what="where", where="copies", accepted=MAX_EXPRESSION_COPIES) as caught:
        expression.parse_expression(pl, text, "where")
    assert caught.value.given > MAX_EXPRESSION_COPIES


@pytest.mark.parametrize(
    ("predicate", "n"),
    [
        ("lpad(CAST(w AS VARCHAR), 10, '0') > '0000000002'", 3),
        ("concat(kind, '/', w) = 'it''s \\/2' OR concat_ws('-', w, w) = '3-3'", 2),
        ("replace(replace(kind, 'it', 'that'), 's', 'S') = 'that''S \\'", 3),
        ("kind || '-' || kind = 'it''s \\-it''s \\'", 3),
        ("length(string_agg(kind, ',')) > 20", 6),
        (" OR ".join(["w BETWEEN 1 AND 2"] * 60), 2),
        ("(w BETWEEN 1 AND 2) AND (w BETWEEN 2 AND 3)", 1),
        (" + ".join(["1"] * 300) + " + w > 302", 3),
        ("CASE " + " ".join(f"WHEN w = {i} THEN {i % 2}" for i in range(100)) + " ELSE 0 END = 1", 3),
        ("CASE w " + " ".join(f"WHEN {i} THEN {i % 2}" for i in range(100)) + " ELSE 0 END = 1", 3),
        ("coalesce(split_part(kind, ' ', 1), right(kind, 3)) = 'select'", 3),
        ("kind = '" + "lpad(x, 9999)" * 10_000 + "'", 0),
    ],
)
def test_expression_within_the_limits_is_evaluated(version, predicate, n):
    assert len(version.where(predicate)) == n


def test_every_function_of_the_list_is_one_of_polars():
    for name in expression._FUNCTIONS.split():
        try:
            expression.parse_expression(pl, f"{name}()", "where")
        except FieldNotFound as refused:
            told = str(refused)  # of the number of its arguments
        else:
            told = ""
        assert "unsupported function" not in told, name


def test_polars_that_reads_texts_otherwise_sees_none_of_them(monkeypatch):
    seen = []

    def reads_escapes(text):
        seen.append(text)
        raise pl.exceptions.SQLSyntaxError("unterminated")

    monkeypatch.setattr(pl, "sql_expr", reads_escapes)
    with refusal(FieldNotFound, what="where", given="\\'", accepted="no backslash before a quote"):
        expression.parse_expression(pl, "a = 'x\\' AND b = 'FROM y'", "where")
    assert seen == ["'\\'"]
