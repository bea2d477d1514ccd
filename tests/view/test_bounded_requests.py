"""Requests that would keep the server busy, data that its pages do not expect, and its end while a page is made."""

import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

import loader
from loader.dataset.tables.parquet import table_bytes
from loader.run.trail.step_rows import StepRow, rows_table
from penstock.cli import main
from penstock.view.web.guard import MOST_HEAD_BYTES
from tests.servers.patience import PATIENCE_S, until
from tests.view.conftest import train
from tests.view.test_web import TOKEN, Served

LONG = "\\" * 60_000


@pytest.fixture
def serve():
    opened = []

    def serve(folder, **options):
        opened.append(Served(folder, **{"recipe": None, **options}))
        return opened[-1]

    yield serve
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {"cookie": f'a="{LONG}"'}),
        ("/", {"cookie": f'a="{LONG}"; penstock-8497={TOKEN}'}),
        ("/", {"accept": LONG}),
        ("/", {"if_none_match": LONG}),
        (f"/{'a' * MOST_HEAD_BYTES}", {}),
        (f"/?{'a&' * (MOST_HEAD_BYTES // 2)}", {}),
    ],
)
def test_request_with_a_long_head_is_refused_before_it_is_read(serve, trained, path, headers):
    answer = serve(trained).ask("GET", path, **headers)
    assert answer.status_code == 431
    assert f"up to {MOST_HEAD_BYTES:,} bytes" in answer.text


@pytest.mark.parametrize(
    ("cookie", "status"),
    [
        (f'a="{LONG[:30_000]}"; penstock-8497={TOKEN}', 200),
        (f"x=1;penstock-8497=other; penstock-8497={TOKEN} ;y", 200),
        (f'a="{LONG[:30_000]}"', 403),
        (f"xpenstock-8497={TOKEN}", 403),
        (f"penstock-8497={TOKEN}x", 403),
        (";" * 30_000, 403),
        ("penstock-8497=\xff", 403),
    ],
)
def test_token_is_found_among_other_cookies(serve, trained, cookie, status):
    assert serve(trained).ask("GET", "/", cookie=cookie).status_code == status


@pytest.fixture
def bare(tmp_path):
    """A root with a version that has none of the columns with which a grid tells samples apart."""
    with loader.Root(tmp_path / "root") as root, root.write("bare") as writer:
        for i in range(5):
            writer.add(f"k{i}", {"txt": "a"}, metadata={"size": i})
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("where=size+%3E+2&sort=size", ["k3", "k4"]),
        ("sort=-size", ["k4", "k3", "k2", "k1", "k0"]),
        ("where=size+%3E+9", []),
        ("where=size+%3E+1&sort=-size&from=2", ["k2"]),
        ("where=size+=+3", ["k3"]),
    ],
)
def test_version_without_label_kind_and_split_is_filtered_and_sorted(serve, bare, query, keys):
    served = serve(bare)
    record = served.get(f"/v/bare/1.json?{query}")
    assert record.status_code == 200
    assert [(one["key"], one["columns"]) for one in record.json()["rows"]] == [(key, {}) for key in keys]
    assert served.get(f"/v/bare/1?{query}").status_code == 200


def wrong(table, how):
    """A table of a trail as another tool may have written it."""
    names = table.column_names
    if how == "text":
        return table.set_column(names.index("step"), "step", pa.array(["a", "b"]))
    if how == "note":
        return table.append_column("note.extra", pa.array(["high", "low"]))
    if how == "missing":
        return table.drop_columns(["digest"])
    if how == "null":
        return table.set_column(names.index("at_us"), "at_us", pa.array([1, None], pa.int64()))
    largest = pa.array([[], [{"note": "loss", "slot": 1, "value": None}]], table.schema.field("largest").type)
    return table.set_column(names.index("largest"), "largest", largest)


@pytest.mark.parametrize("how", ["text", "note", "missing", "null", "largest"])
def test_trail_with_other_columns_is_named_as_damaged(serve, root, plan, how, tmp_path, capsys):
    train(root, plan, "one")
    (start,) = loader.read_trail(root, "one").starts
    rows = [
        StepRow(step=step, at_us=start.at_us + step, digest=step, substituted=0, wait_us=5) for step in (6, 7)
    ]
    key = f"trails/one/0-of-1/{6:019d}-{6:016x}.parquet"
    root.store.put(key, table_bytes(wrong(rows_table(rows, start.id), how), "trail"))
    served = serve(tmp_path / "root")
    for path in ("/r/one", "/r/one/2", "/r/one/2/1", "/r/one.json"):
        answer = served.get(path)
        assert answer.status_code == 502
        assert "is not a table of a trail" in answer.text
        assert key in answer.text
    assert main(["trail", "show", "one", "--root", root.url]) == 1
    assert "is not a table of a trail" in capsys.readouterr().err


def test_trail_with_a_column_of_a_later_release_is_read(root, plan):
    train(root, plan, "one")
    (start,) = loader.read_trail(root, "one").starts
    row = StepRow(step=6, at_us=start.at_us + 9, digest=6, substituted=0, wait_us=5)
    table = rows_table([row], start.id).append_column("later", pa.array([{"a": 1}]))
    root.store.put(f"trails/one/0-of-1/{6:019d}-{6:016x}.parquet", table_bytes(table, "trail"))
    assert loader.read_trail(root, "one").steps["step"].to_list() == [*range(7)]


BUSY = """
import sys, time
from pathlib import Path
from penstock.cli import main
from penstock.view.inspect import sample_record
from penstock.view.web import media

def busy(*_):
    Path(sys.argv[1]).touch()
    time.sleep(600)

media.read_sample = busy
sys.exit(main(["view", "--port", "0", "--root", sys.argv[2]]))
"""


def test_server_ends_while_a_thread_decodes(trained, tmp_path):
    command = [sys.executable, "-c", BUSY, str(tmp_path / "decodes"), str(trained)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = server.stdout.readline().strip()
    base, _, token = address.rpartition("/?token=")
    port = base.rpartition(":")[2]
    ask = (
        "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=100); "
        "c.request('GET', '/v/photos/1/s/3/thumb/jpg', headers={'Cookie': sys.argv[2]}); "
        "a = c.getresponse(); print(a.status, a.read().decode())"
    )
    browser = subprocess.Popen(
        [sys.executable, "-c", ask, port, f"penstock-{port}={token}"], stdout=subprocess.PIPE, text=True
    )
    try:
        until((tmp_path / "decodes").exists, process=server)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0
        assert browser.stdout.read().strip() == "503 the viewer ends"
        assert "Traceback" not in server.stderr.read()
    finally:
        for process in (server, browser):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("verb", "package"),
    [
        ("view", "anyio"),
        ("view", "starlette"),
        ("view", "uvicorn"),
        ("view", "jinja2"),
        ("tui", "textual"),
        ("tui", "textual_image"),
    ],
)
def test_package_that_is_missing_is_named_with_its_extra(trained, verb, package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; from penstock.cli import main; "
        f"sys.exit(main({[verb, 'one@2', '--root', str(trained)]!r}))"
    )
    ours, theirs = os.openpty()  # `tui` wants a terminal
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"needs the package {package!r}, which is not installed: pip install " in done.stderr
    assert f"[{verb}]'" in done.stderr
