"""The viewer's server: who is let in, pages and their records, media, and actions."""

import html
import http.client
import json
import re
import socket
import threading
from contextlib import closing
from typing import NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

import numpy as np
import pytest
import uvicorn

import loader
from penstock.cli import main
from penstock.view import open_data
from penstock.view.open_data import OpenData
from penstock.view.raw_source import RawSource
from penstock.view.web import find
from penstock.view.web.app import application
from penstock.view.web.guard import csrf
from penstock.view.web.static_files import PATH
from tests.servers.patience import PATIENCE_S
from tests.view.conftest import BATCH, LABELS, STEPS, shell_words, train, write_photos
from tests.view.test_open_data import FAILS

TOKEN = "t0ken-" * 8
LONG = "9" * 5000


class Answer(NamedTuple):
    """An HTTP response; headers: of a name in lower case the last one."""

    status_code: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self):
        return self.content.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


class Served:
    """A server on a port of its own, with a client. `get` and `post` bring the cookie."""

    def __init__(self, folder, writes=False, prefix="", recipe="tests.view.recipes:recipe", raw=None):
        """folder: of a root, or a `Root`, which is closed with the server."""
        self.root = folder if isinstance(folder, loader.Root) else loader.Root(folder)
        self.opened = OpenData(self.root, recipe, raw=RawSource(self.root, raw) if raw else None)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        app = application(
            self.opened,
            token=TOKEN,
            hosts={self.host},
            cookie="penstock-8497",
            prefix=prefix,
            writes=writes,
            ui="http://d",
        )
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def ask(self, method, path, body=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"host": self.host, **headers}.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            content = response.read()
            lower_case = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, lower_case, content)

    def get(self, path, **headers):
        return self.ask("GET", path, **{"cookie": f"penstock-8497={TOKEN}", **headers})

    def post(self, body, path="/exclude", **headers):
        given = {
            "cookie": f"penstock-8497={TOKEN}",
            "origin": f"http://{self.host}",
            "sec_fetch_site": "same-origin",
            "x_csrf": csrf(TOKEN),
            "content_type": "application/json",
            **headers,
        }
        return self.ask("POST", path, json.dumps(body).encode(), **given)

    def close(self):
        self.server.should_exit = True
        self.thread.join()
        self.opened.close()
        self.root.close()


@pytest.fixture
def serve(trained):
    opened = []

    def serve(folder=trained, **options):
        opened.append(Served(folder, **options))
        return opened[-1]

    yield serve
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def site(trained):
    one = Served(trained)
    yield one
    one.close()


PAGES = [
    "/",
    "/r/one",
    "/r/one/2",
    "/r/three/2?world=3&rank=1",
    "/r/one/2/3",
    "/r/one/against/three",
    "/r/one/against/floats",
    "/r/one/window",
    "/r/one/window?from=1&to=4",
    "/v/photos/1",
    "/v/photos/1/s/3",
]


@pytest.mark.parametrize("path", [*PAGES, f"/{PATH}view.js", "/v/photos/1/s/3/stored/jpg", "/nowhere"])
def test_nobody_is_let_in_without_the_token(site, path):
    for cookie in ({}, {"cookie": "penstock-8497=wrong"}, {"cookie": f"other={TOKEN}"}):
        answer = site.ask("GET", path, **cookie)
        assert answer.status_code == 403
        assert "photos" not in answer.text
    assert site.ask("GET", f"{path}{'&' if '?' in path else '?'}token=wrong").status_code == 403


def test_token_becomes_a_cookie_and_leaves_the_address(site):
    answer = site.ask("GET", f"/r/three/2?world=3&token={TOKEN}&rank=1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "./2?world=3&rank=1"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"penstock-8497={TOKEN};")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/", "./"),
        ("/v/photos/1", "./1"),
        ("//evil.example", "./evil.example"),
        ("/javascript:alert(1)", "./javascript%3Aalert%281%29"),
        ("/%5C%5Cevil.example", "./%5C%5Cevil.example"),
        ("/a%0d%0aset-cookie:%20b", "./a%0D%0Aset-cookie%3A%20b"),
    ],
)
def test_first_address_leads_nowhere_else(site, path, location):
    answer = site.ask("GET", f"{path}?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, location)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example", ""])
def test_foreign_host_is_refused(site, host):
    answer = site.get("/", host=host)
    assert answer.status_code == 421
    assert "photos" not in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/nowhere", "/r/one/2/3/transformed/jpg/0", f"/{PATH}view.js"])
def test_every_answer_has_the_headers(site, path):
    headers = site.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", PAGES)
def test_page_is_its_record(site, path):
    at, _, query = path.partition("?")
    told = site.get(f"{at if at != '/' else '/index'}.json?{query}")
    assert told.status_code == 200
    record = told.json()
    page = site.get(path)
    assert page.status_code == 200
    assert "<script>" not in page.text
    for name in ("key", "version_id", "run"):
        if isinstance(record, dict) and isinstance(record.get(name), str) and name != "version_id":
            assert record[name] in page.text


def test_links_of_every_page_are_relative_and_lead_somewhere(serve):
    prefix = "/user/ada/proxy/8497"
    served, sound = serve(prefix=prefix), set()
    for path in PAGES:
        page = served.get(f"{prefix}{path}")
        assert page.status_code == 200
        links = set(re.findall(r'(?:href|src)="([^"]*)"', page.text))
        assert links
        for link in links:
            link = link.replace("&amp;", "&")
            if link.startswith("http://d/runs/"):
                continue
            assert not link.startswith("/")
            assert "://" not in link
            found = urlsplit(urljoin(f"http://{served.host}{prefix}{path}", link))
            assert found.path.startswith(f"{prefix}/")
            target = f"{found.path}?{found.query}"
            if target not in sound:
                answer = served.get(target)
                assert answer.status_code == 200, (link, answer.text[:200])
                sound.add(target)


def test_step_page_shows_all_slots_their_labels_and_proofs(site):
    page = site.get("/r/one/2").text
    assert page.count(">proved<") == 4
    assert len(re.findall('class="card( bad)?"', page)) == BATCH
    assert all(label in page for label in LABELS)


def test_marked_slot_stands_out_on_its_step_and_its_own_page(site):
    with loader.Root(site.root.url) as root:
        plan = loader.open_plan(root, loader.read_trail(root, "one").starts[0].plan)
        step, slot = next(iter(plan.steps_of("photos", "p/0", before=6)))[:2]
    page = site.get(f"/r/one/{step}").text
    assert page.count('class="card bad"') == 1
    record = site.get(f"/r/one/{step}.json").json()
    assert record["marks"][0]["slots"] == [slot]
    assert record["marks"][0]["name"] in ("black", "constant")
    told = site.get(f"/r/one/{step}/{slot}.json").json()
    assert told["key"] == "p/0"
    assert {one["name"] for one in told["marks"]} & {"black", "constant"}


def test_runs_are_held_against_each_other(site, plan):
    assert site.get("/r/one/against/three.json").json()["step"] == -1
    assert f"{STEPS} steps are equal" in site.get("/r/one/against/three").text
    answer = site.get("/r/one/against?run=a%2Fb%3F")
    assert (answer.status_code, answer.headers["location"]) == (303, "against/a%2Fb%3F")


def test_runs_are_laid_over_each_other(site, plan):
    page = site.get("/r/one?over=three&over=three&over=one").text
    (addresses,) = re.findall(r'data-over="([^"]*)"', page)
    assert addresses.split() == ["../r/three.json"]
    assert "against/three" in page
    assert 'data-over=""' in site.get("/r/one").text
    assert "no training has recorded this plan" in site.get(f"/r/one?over={plan.hash}").text


def test_first_step_that_differs_is_shown_with_both_samples(serve, root, plan):
    train(root, plan, "one")
    other = loader.plan({"pictures": plan.sources["photos"].view}, seed=4, global_batch=BATCH)
    train(root, other, "seeded")
    served = serve(root.url)
    record = served.get("/r/one/against/seeded.json").json()
    ids = [one.batch_ids(0) for one in (plan, other)]
    told = {
        one["slot"]: tuple((sample["source"], sample["key"]) for sample in one["samples"])
        for one in record["slots"]
    }
    keys = {slot: (a, b) for slot, (a, b) in enumerate(zip(*ids, strict=True)) if a[1] != b[1]}
    assert told == keys
    assert (record["step"], record["n_slots"], record["problem"]) == (0, len(keys), "")
    page = served.get("/r/one/against/seeded").text
    assert all(f">{key}</a>" in page for pair in keys.values() for _, key in pair)


def test_stored_bytes_come_whole_and_by_ranges_with_a_fixed_type(site):
    with loader.Root(site.root.url) as root:
        version = root.open("photos@1")
        (address,) = version.address(np.array([3]), ["jpg"])
    whole = site.get("/v/photos/1/s/3/stored/jpg")
    assert whole.headers["content-type"] == "image/jpeg"
    data = whole.content
    assert len(data) == address.fields["jpg"].nbytes
    for asked, wanted in [
        ("0-9", data[:10]),
        ("100-", data[100:]),
        ("-7", data[-7:]),
        ("5-99999999", data[5:]),
    ]:
        part = site.get("/v/photos/1/s/3/stored/jpg", range=f"bytes={asked}")
        assert part.status_code == 206
        assert part.content == wanted
        assert part.headers["content-range"].endswith(f"/{len(data)}")
    for asked in (
        "bytes=9-3",
        "bytes=a-b",
        "bytes=-",
        "bytes=",
        "bytes=0-1,x",
        "lines=1-2",
        "bytes=0-1,3-4",
    ):
        answer = site.get("/v/photos/1/s/3/stored/jpg", range=asked)
        assert (answer.status_code, answer.content) == (200, data), asked
    other = site.get("/v/photos/1/s/3/stored/cls")
    assert other.headers["content-type"] == "application/octet-stream"
    assert other.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("path", ["/v/photos/1/s/3/stored/jpg", "/v/photos/1/s/3/stored/cls"])
def test_range_without_bytes_is_416_and_names_the_size(site, path):
    n = len(site.get(path).content)
    for asked in (f"bytes={n}-", f"bytes={LONG}-", "bytes=-0", f"bytes={n}-{LONG}", f"BYTES=-0, {n}-"):
        refused = site.get(path, range=asked)
        assert (refused.status_code, refused.headers["content-range"]) == (416, f"bytes */{n}"), asked
    for asked, nbytes in ((f"bytes=0-{LONG}", n), (f"bytes=-{LONG}", n), (f"bytes={n - 1}-,{n}-", 1)):
        part = site.get(path, range=asked)
        assert (part.status_code, len(part.content)) == (206, nbytes), asked


def test_range_continues_only_the_bytes_of_its_etag(site):
    path = "/v/photos/1/s/3/stored/jpg"
    whole = site.get(path)
    part = site.get(path, range="bytes=2-4", **{"if-range": whole.headers["etag"]})
    assert (part.status_code, part.content) == (206, whole.content[2:5])
    assert part.headers["etag"] == whole.headers["etag"]
    for other in ('"other"', "Fri, 27 Nov 2026 10:00:00 GMT"):
        again = site.get(path, range="bytes=2-4", **{"if-range": other})
        assert (again.status_code, again.content) == (200, whole.content)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/r/nobody", 404, "nobody"),
        ("/r/one?over=nobody", 404, "nobody"),
        ("/r/one?over=a&over=b&over=c&over=d", 404, "accepted are up to 3"),
        ("/r/one/against/nobody", 404, "nobody"),
        ("/r/nobody/against/one", 404, "nobody"),
        ("/r/nobody/window", 404, "nobody"),
        ("/r/one/window?from=5&to=2", 404, "from = 5, to = 2"),
        ("/r/one/window?from=0&to=2000", 404, "1 to 2,000 steps"),
        ("/r/one/window?from=-1&to=2", 404, "whole number from 0"),
        ("/r/one/against/..%2fone", 404, ""),
        ("/r/one/2/3/raw", 404, "--raw URL"),
        ("/r/one/2/99", 404, "slot = 99"),
        ("/r/one/2?world=0", 404, "world_size = 0"),
        ("/r/one/2?world=2&amp;rank=x", 200, "Step 2"),
        ("/r/one/2?rank=7", 404, "rank = 7"),
        ("/v/photos/9", 404, "photos"),
        ("/v/nothing/1", 404, "nothing"),
        ("/v/photos/1/s/999", 404, "ordinal = 999"),
        ("/v/photos/1/s/3/stored/nofield", 404, "nofield"),
        ("/v/photos/1.json?where=width+%3E", 400, "not an SQL expression"),
        ("/v/photos/1.json?where=(SELECT+1)", 400, "SELECT"),
        (f"/v/photos/1.json?where=width+in+(1){'+or+note+=+1' * 200}", 400, "words and operators"),
        ("/v/photos/1.json?sort=((((((((width))))))))", 400, "nested brackets"),
        ("/v/photos/1.json?t=width+%3E+cls", 400, "cls"),
        ("/v/photos/1?where=width+%3E", 200, "not an SQL expression"),
        ("/v/photos/1?where=(SELECT+1)", 200, "SELECT"),
        ("/v/photos/1?sort=((((((((width))))))))", 200, "nested brackets"),
        ("/v/photos/1?from=-1", 404, "whole number"),
        ("/r/..%2f..%2fetc/1", 404, ""),
        ("/v/photos/1/s/3/stored/..%2f..%2fetc%2fpasswd", 404, ""),
        (f"/{PATH}..%2fpage.py", 404, ""),
        ("/nowhere", 404, "no page"),
        ("/r/one/LONG", 404, "no page"),
        ("/r/one/2/LONG", 404, "no page"),
        ("/r/one/2/thumb/LONG/jpg", 404, "no page"),
        ("/v/photos/LONG.json", 404, "no page"),
        ("/v/photos/1/s/LONG", 404, "no page"),
        ("/v/photos/1?from=LONG", 404, "18 digits"),
        ("/r/one/window?from=LONG", 404, "18 digits"),
        ("/r/one/2?world=LONG", 404, "18 digits"),
        (f"/r/one/{'9' * 18}", 200, "Step 9"),
        (f"/v/photos/{'9' * 18}", 404, "photos"),
        (f"/r/one/2/{'9' * 18}", 404, "slot ="),
    ],
)
def test_what_is_not_there_is_said(site, path, status, text):
    answer = site.get(path.replace("LONG", LONG))
    assert answer.status_code == status
    assert text in answer.text
    assert "Traceback" not in answer.text
    assert "root:x:" not in answer.text


def test_grid_is_filtered_and_sorted(site):
    record = site.get("/v/photos/1.json?where=note+%3D+%27n1%27&sort=-width").json()
    numbers = [int(row["key"][2:]) for row in record["rows"]]
    assert record["n_found"] == len(numbers) == 7
    assert all(number % 2 for number in numbers)
    widths = [number % 7 for number in numbers]
    assert widths == sorted(widths, reverse=True)


def test_retired_version_is_shown_and_named_as_such(serve, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
        write_photos(root, numbers=range(20, 24))
        root.retire("photos@1", reason="too small")
    served = serve(tmp_path / "root", recipe=None)
    assert served.get("/v/photos/1.json").json()["n_samples"] == 14
    assert served.get("/v/photos/1/diff/2").status_code == 200
    assert served.get("/").text.count(">retired<") == 1


def test_version_whose_data_is_deleted_is_gone_by_name(serve, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
        write_photos(root, numbers=range(20, 24))
        root.retire("photos@1", reason="too small")
        (
            tmp_path / "root" / root.record("photos@1", retired=True).manifest
        ).unlink()  # as a collector does in the end
    served = serve(tmp_path / "root", recipe=None)
    answer = served.get("/v/photos/1")
    assert answer.status_code == 410
    assert "too small" in answer.text
    assert "its data is deleted" in answer.text
    assert served.get("/v/photos/2").status_code == 200


def test_class_names_hold_after_an_exclusion(serve, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
    served = serve(tmp_path / "root", writes=True, recipe=None)
    samples = [{"version": "photos@1", "key": "p/1"}]
    assert served.post({"samples": samples, "reason": "r", "by": "ada", "page": "/"}).status_code == 200
    for number in (1, 2):
        record = served.get(f"/v/photos/{number}/s/3.json").json()
        (cls,) = [one for one in record["fields"] if one["field"] == "cls"]
        assert cls["decoded"]["lines"][0].partition(": ")[2] in LABELS


def test_hostile_text_is_text(serve, tmp_path):
    bad = "<script>alert(1)</script>\u202e\x1b[2J\"'><img src=x onerror=alert(2)>"
    with loader.Root(tmp_path / "root") as root:
        with root.write("odd", producer={"labels": [bad]}) as writer:
            writer.add("a<b>\"'&", {"x.txt": bad, "cls": 0}, metadata={"label": bad}, source={"raw_uri": bad})
        version = root.open("odd@1")
        plan = loader.plan({bad[:8]: version.select()}, seed=1, global_batch=1, allow_repeats=True)
        from tests.view import recipes

        train(root, plan, "odd", recipe=recipes.plain, code=bad)
        other = loader.plan({bad[8:16]: version.select()}, seed=2, global_batch=2, allow_repeats=True)
        train(root, other, "other", recipe=recipes.plain)
    served = serve(tmp_path / "root", recipe=None)
    for path in (
        "/",
        "/v/odd/1",
        "/v/odd/1/s/0",
        "/r/odd",
        "/r/odd/0",
        "/r/odd/0/0",
        "/r/odd/against/other",
        "/r/odd/window",
        "/v/odd/1?where=label+%3D+%27<b>%27",
    ):
        page = served.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert "\u202e" not in page.text
        assert "\x1b" not in page.text


ODD_KEYS = [
    "'; touch pwned #",
    "two  blanks",
    "-rf",
    "--root",
    "turned\u202eyek",
    "é $(id) \\ `id`",
    "a\u00a0b\u2009c",
]


def test_copied_command_gives_a_shell_the_key_and_the_root_as_they_are(serve, tmp_path):
    folder = tmp_path / "my $(root)"
    with loader.Root(folder) as root, root.write("odd") as writer:
        for key in [*ODD_KEYS, "kept"]:
            writer.add(key, {"txt": "a"})
    with loader.Root(folder) as root:
        keys = root.open("odd").keys(np.arange(len(ODD_KEYS) + 1))
    served = serve(folder, recipe=None)
    for ordinal, key in enumerate(keys):
        page = served.get(f"/v/odd/1/s/{ordinal}").text
        assert unquote(re.search(r'<body[^>]* data-key="([^"]*)"', page)[1]) == key
        command = unquote(re.search('data-command="([^"]*)"', page)[1])
        assert command.isprintable()
        words = shell_words(command)
        assert words == ["exclude", "--reason", "R", "--by", "WHO", "--root", str(folder), "--", "odd", key]
        if key != "kept":
            assert main(words) == 0
    with loader.Root(folder) as root:
        version = root.open("odd")
        assert version.keys(np.arange(len(version))) == ["kept"]


def test_card_names_its_key_as_it_is(serve, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("odd") as writer:
            for key in [*ODD_KEYS, "kept"]:
                writer.add(key, {"txt": "a"})
        plan = loader.plan({"odd": root.open("odd").select()}, seed=1, global_batch=len(ODD_KEYS) + 1)
        plan.save(root)
    served = serve(tmp_path / "root", recipe=None, writes=True)
    for path in ("/v/odd/1", f"/r/{plan.hash}/0"):
        page = served.get(path).text
        keys = [
            unquote(encoded) or html.unescape(text)
            for encoded, text in re.findall(
                r'<a class="card[^>]* data-key(?:="([^"]*)")?.*?<(?:code|span class="key")>(.*?)</',
                page,
                re.DOTALL,
            )
        ]
        assert sorted(keys) == sorted([*ODD_KEYS, "kept"])
    samples = [{"version": "odd@1", "key": key} for key in keys if key != "kept"]
    assert served.post({"samples": samples, "reason": "r", "by": "a", "page": ""}).status_code == 200


def test_values_of_columns_lead_to_their_samples_as_they_are(serve, tmp_path):
    odd = ["two  blanks", "it's", "turned\u202eback", "x" * 120]
    with loader.Root(tmp_path / "root") as root, root.write("odd") as writer:
        for i, label in enumerate(odd):
            writer.add(f"k{i}", {"txt": "a"}, metadata={"label": label})
    served = serve(tmp_path / "root", recipe=None)
    page = served.get("/v/odd/1").text
    assert "\u202e" not in page
    queries = re.findall(r'<li><a href="([?][^"]*label[^"]*)"', page)
    links = [f"v/odd/1{html.unescape(query)}" for query in queries]
    assert len(links) == len(odd)
    found = [served.get(f"/{link.replace('?', '.json?', 1)}").json() for link in links]
    assert [one["n_found"] for one in found] == [1] * len(odd)
    (link,) = [one for one in links if "blanks" in one]
    assert "label&#34; = &#39;two  blanks&#39;" in served.get(f"/{link}").text.replace(
        "&quot;", "&#34;"
    ).replace("&#x27;", "&#39;")


def test_lines_keep_their_indentation(serve, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("odd") as writer:
            writer.add("k", {"json": {"box": {"left": 3}}, "txt": "def f():\n    return  1"})
        plan = loader.plan({"odd": root.open("odd").select()}, seed=1, global_batch=1)
        plan.save(root)
    served = serve(tmp_path / "root", recipe=None)
    for path in ("/v/odd/1/s/0", f"/r/{plan.hash}/0/0"):
        page = html.unescape(served.get(path).text)
        for line in ('  "box": {', '    "left": 3', "    return  1"):
            assert f"<li>{line}</li>" in page


def test_writes_need_a_request(site):
    body = {"samples": [{"version": "photos@1", "key": "p/1"}], "reason": "r", "by": "ada", "page": "/"}
    assert site.post(body).status_code == 405


@pytest.mark.parametrize(
    "change",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"x_csrf": ""},
        {"x_csrf": TOKEN},
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"cookie": ""},
        {"host": "evil.example"},
    ],
)
def test_post_of_another_page_excludes_nothing(serve, tmp_path, change):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
    served = serve(tmp_path / "root", writes=True, recipe=None)
    body = {"samples": [{"version": "photos@1", "key": "p/1"}], "reason": "r", "by": "ada", "page": "/"}
    assert served.post(body, **change).status_code in (403, 421)
    assert [one.number for one in served.root.versions("photos")] == [1]


def test_basket_becomes_one_version_with_who_and_why(serve, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
    served = serve(tmp_path / "root", writes=True, recipe=None)
    samples = [{"version": "photos@1", "key": key} for key in ("p/1", "p/4", "p/1")]
    answer = served.post({"samples": samples, "reason": "black", "by": "ada", "page": "/r/one/5"})
    assert answer.json() == {"versions": ["photos@2"]}
    version = served.root.open("photos@2")
    assert set(version.keys(np.arange(len(version)))) == {f"p/{i}" for i in range(14)} - {"p/1", "p/4"}
    told = json.dumps(version.manifest["producer"])
    assert all(word in told for word in ("black", "ada", "/r/one/5"))
    assert served.get("/v/photos/1/diff/2").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"samples": [], "reason": "r", "by": "a", "page": ""},
        {"samples": [{"version": "photos", "key": "p/1"}], "reason": "r", "by": "a", "page": ""},
        {"samples": [{"version": "photos@1", "key": "nothing"}], "reason": "r", "by": "a", "page": ""},
        {"samples": [{"version": "photos@1", "key": "p/1"}], "reason": "", "by": "a", "page": ""},
        {"samples": "photos@1", "reason": "r", "by": "a", "page": ""},
        {"samples": [{"version": f"photos@{LONG}", "key": "p/1"}], "reason": "r", "by": "a", "page": ""},
    ],
)
def test_bad_basket_is_refused_whole(serve, tmp_path, body):
    with loader.Root(tmp_path / "root") as root:
        write_photos(root)
    served = serve(tmp_path / "root", writes=True, recipe=None)
    answer = served.post(body)
    assert answer.status_code == 409
    assert [one.number for one in served.root.versions("photos")] == [1]


def test_look_writes_leases_alone(trained, monkeypatch):
    with Served(trained, recipe=None) as served:
        keys = []
        for verb in ("put", "put_if_absent", "put_file", "delete_many"):
            method = getattr(served.root.store, verb)
            monkeypatch.setattr(
                served.root.store,
                verb,
                lambda key, *more, method=method, **named: (keys.append(key), method(key, *more, **named))[1],
            )
        for path in [
            *PAGES,
            "/v/photos/1?where=width+%3E+42",
            "/r/one/2/3/decoded/jpg/0",
            "/v/photos/1/s/3/thumb/jpg",
        ]:
            assert served.get(path).status_code == 200
        assert {str(key).split("/")[0] for key in keys} == {"leases"}


def test_pictures_that_are_without_the_recipe_are_not_those_with_it(serve, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(FAILS)
    (tmp_path / "fails").touch()
    served = serve(recipe=f"{tmp_path}/train.py:recipe")
    paths = ("/r/one/2/thumb/3/jpg", "/r/one/2/3/transformed/jpg/0")
    without = [served.get(path) for path in paths]
    assert "is not mounted" in served.get("/r/one/2").text
    assert {one.headers["cache-control"] for one in without} == {"no-store"}
    (tmp_path / "fails").unlink()
    monkeypatch.setattr(open_data, "RETRY_S", 0.0)
    for path, before in zip(paths, without, strict=True):
        now = served.get(path)
        assert now.headers["cache-control"].startswith("private")
        assert now.content != before.content


@pytest.mark.parametrize(
    "path", ["/r/one/2/thumb/3/jpg", "/r/one/2/3/transformed/jpg/0", "/v/photos/1/s/3/stored/jpg"]
)
def test_browser_asks_whether_a_picture_is_still_the_same(site, path):
    """The next server at this address may have another recipe, or another root."""
    first = site.get(path)
    assert first.headers["cache-control"] == "private, no-cache"
    again = site.get(path, if_none_match=first.headers["etag"])
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = site.get(path, if_none_match='"0123"')
    assert (other.status_code, other.content) == (200, first.content)


def test_static_files_are_kept_for_good_at_their_digest(site):
    kept = site.get(f"/{PATH}view.js")
    assert kept.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert PATH in site.get("/v/photos/1").text
    other = site.get("/static/0123456789abcdef/view.js")
    assert (other.status_code, other.headers["cache-control"]) == (404, "no-store")
    assert site.get("/v/photos/1").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("text", "status", "location"),
    [
        ("one", 303, "r/one"),
        ("one@2", 303, "r/one/2"),
        ("photos", 303, "v/photos/1"),
        ("photos@1", 303, "v/photos/1"),
        (" photos@latest ", 303, "v/photos/1"),
        ("p-0123", 303, "r/p-0123"),
        ("", 303, "./"),
        ("//evil.example", 404, "is called"),
        ("../../etc/passwd", 404, "is called"),
        ("photo", 404, "did you mean"),
        ("<script>alert(1)</script>@1", 404, "&lt;script&gt;"),
        ("x" * 401, 404, "up to 400"),
    ],
)
def test_search_box_opens_the_page_of_a_name(site, text, status, location):
    answer = site.get(f"/find?text={quote(text)}")
    assert answer.status_code == status
    if status == 303:
        assert answer.headers["location"] == location
    else:
        assert location in answer.text


@pytest.mark.parametrize(
    ("query", "location"),
    [
        ("run=one&step=2", "r/one/2"),
        ("run=one&step=", "r/one"),
        ("run=%2F%2Fevil.example&step=%2F..", "r/%2F%2Fevil.example/%2F.."),
    ],
)
def test_step_box_opens_the_step_of_a_run(site, query, location):
    answer = site.get(f"/find?{query}")
    assert (answer.status_code, answer.headers["location"]) == (303, location)


def test_search_box_opens_the_sample_of_a_key(site):
    location = site.get("/find?text=p/3").headers["location"]
    assert site.get(f"/{location}.json").json()["key"] == "p/3"


def test_search_box_names_datasets_that_it_did_not_search(site, monkeypatch):
    assert "Keys were searched" not in site.get("/find?text=p/nothing").text
    monkeypatch.setattr(find, "MOST_SEARCHED", 0)
    n = len(site.opened.root.datasets())
    assert f"Keys were searched in the first 0 of {n} datasets." in site.get("/find?text=p/nothing").text
