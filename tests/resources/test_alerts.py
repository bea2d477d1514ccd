"""Alerts, to a real server of hooks."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.alerts import Alert, channels, send
from resources.alerts import AlertsResource

SECRET = "T0KEN"


NO_HTTP = 0


class Hook(ThreadingHTTPServer):
    """Takes messages; answers: status codes to give first, then 200. NO_HTTP: a line that is not HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[dict[str, str]] = []
        self.answers: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook = self.server
        assert isinstance(hook, Hook)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = hook.answers.pop(0) if hook.answers else 200
        if status == NO_HTTP:
            self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
            return
        if status == 200:
            hook.taken.append(json.loads(body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr("penstock.alerts._PAUSE_S", 0.0)
    with Hook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ALERT = Alert(
    name="batch-stopped", severity="error", dataset="cats", what="batch 7 <was> stopped", details="a & b"
)


def test_webhook_gets_every_field_and_a_link(hook: Hook) -> None:
    assert send(ALERT, channels(f"webhook+{hook.url}")) == []
    assert hook.taken == [
        {
            "name": "batch-stopped",
            "severity": "error",
            "dataset": "cats",
            "what": "batch 7 <was> stopped",
            "details": "a & b",
            "url": "",
            "handbook": "docs/operations.md#batch-stopped",
        }
    ]


def test_slack_gets_one_escaped_text(hook: Hook) -> None:
    send(ALERT, channels(f"slack+{hook.url}"))
    (message,) = hook.taken
    assert set(message) == {"text"}
    assert "batch 7 &lt;was&gt; stopped" in message["text"]
    assert "a &amp; b" in message["text"]


def test_hook_that_fails_for_a_moment_is_tried_again(hook: Hook) -> None:
    hook.answers = [503, 429]
    assert send(ALERT, channels(f"webhook+{hook.url}")) == []
    assert len(hook.taken) == 1


def test_hook_that_does_not_answer_in_http_is_tried_again_and_told(hook: Hook) -> None:
    hook.answers = [NO_HTTP]
    assert send(ALERT, channels(f"webhook+{hook.url}")) == []
    hook.answers = [NO_HTTP] * 3
    (problem,) = send(ALERT, channels(f"webhook+{hook.url}"))
    assert "cannot be reached (BadStatusLine)" in problem
    assert len(hook.taken) == 1


def test_one_that_refuses_is_told_without_its_secret_and_keeps_no_other_from_its_message(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    hook.answers = [403]
    with caplog.at_level(logging.INFO):
        (problem,) = send(ALERT, channels(f"webhook+{hook.url}, slack+{hook.url}"))
    assert problem == "webhook+127.0.0.1 did not take the alert batch-stopped: it answered 403"
    assert len(hook.taken) == 1
    assert "batch 7 <was> stopped" in caplog.text
    assert SECRET not in caplog.text + problem


def test_hook_that_is_not_there_is_told_without_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    with Hook() as gone:
        url = gone.url
    gone.server_close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.alerts._PAUSE_S", 0.0)
        (problem,) = send(ALERT, channels(f"slack+{url}"))
    assert "cannot be reached (ConnectionRefusedError)" in problem
    assert SECRET not in caplog.text + problem


@pytest.mark.parametrize(
    "setting",
    [
        *("slack", "mail+http://x/T0KEN", "slack+T0KEN", "log,webhook+ftp://x/T0KEN"),
        *("slack+https://[T0KEN/x", "slack+https://T0KEN℀@x", "webhook+https://x:T0KEN/x"),
    ],
)
def test_setting_that_is_none_is_refused_without_being_shown(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALERTS", setting)
    with pytest.raises(ValueError, match=r"PENSTOCK_ALERTS: entry \d .* accepted: log, webhook\+") as told:
        AlertsResource().channels()
    assert SECRET not in str(told.value)


def test_no_configuration_holds_the_address(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ALERTS", f"slack+{hook.url}")
    resource = AlertsResource()
    assert [channel.shown for channel in resource.channels()] == ["log", "slack+127.0.0.1"]
    assert SECRET not in repr(resource) + str(resource.model_dump())


def test_pages_are_linked_where_somebody_said_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_WEBSERVER", raising=False)
    assert AlertsResource().page("runs/1") == ""
    monkeypatch.setenv("PENSTOCK_WEBSERVER", "https://dagster.example/")
    assert AlertsResource().page("runs/1") == "https://dagster.example/runs/1"
