"""Pages that wait for a recipe which starts: it starts before it is asked for, and the pages say so meanwhile."""

import asyncio
import signal
import subprocess
import sys
import time

import pytest

import loader
from penstock.view.open_data import OpenData
from penstock.view.terminal.addresses import StepPage
from penstock.view.terminal.viewer_app import ViewerApp
from penstock.view.web import page
from tests.servers.patience import PATIENCE_S, until
from tests.view.test_web import Served

SLOW = """
import pathlib, time
import numpy as np
from tests.view.recipes import crop

def recipe():
    here = pathlib.Path(__file__).parent
    (here / "began").touch()
    while not (here / "go").exists():
        time.sleep(0.02)
    return {"decode": True, "transform": crop}
"""
BROWSER = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def recipe(tmp_path):
    """A recipe that starts once the file `go` is there; it makes `began` before."""
    (tmp_path / "train.py").write_text(SLOW)
    return f"{tmp_path}/train.py:recipe"


def test_page_shows_that_the_recipe_starts_and_then_itself(trained, tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(page, "PATIENCE_S", 0.1)
    served = Served(trained, recipe=recipe)
    try:
        served.opened.start()
        until((tmp_path / "began").exists)  # no page was asked for
        for path in ("/r/one/2", "/r/one/2", "/r/one/2/3"):
            answer = served.get(path, **BROWSER)
            assert answer.status_code == 202
            assert f"--recipe {recipe} is starting: importing its module" in answer.text
            assert '<meta http-equiv="refresh" content="1">' in answer.text
        for path in ("/r/one", "/v/photos/1"):  # they wait for nothing
            while (answer := served.get(path, **BROWSER)).status_code == 202:
                assert "is starting" in answer.text
            assert answer.status_code == 200
        (tmp_path / "go").touch()
        for path, shown in {"/r/one/2": ">proved<", "/r/one/2/3": "Provenance"}.items():
            while (answer := served.get(path, **BROWSER)).status_code == 202:
                time.sleep(0.02)
            assert answer.status_code == 200
            assert shown in answer.text
        assert served.opened.recipe_state() == ""
    finally:
        (tmp_path / "go").touch()
        served.close()


def test_second_request_waits_for_the_same_page(trained, tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(page, "PATIENCE_S", 0.1)
    served = Served(trained, recipe=recipe)
    made = []
    own = served.opened.batch
    monkeypatch.setattr(served.opened, "batch", lambda *given: (made.append(given), own(*given))[1])
    try:
        for _ in range(4):
            assert served.get("/r/one/2", **BROWSER).status_code == 202
        (tmp_path / "go").touch()
        until(lambda: served.get("/r/one/2", **BROWSER).status_code != 202)
        assert len(made) == 1
    finally:
        (tmp_path / "go").touch()
        served.close()


def test_script_waits_for_the_page(trained, tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(page, "PATIENCE_S", 0.0)
    (tmp_path / "go").touch()
    served = Served(trained, recipe=recipe)
    try:
        assert served.get("/r/one/2.json", **BROWSER).json()["step"] == 2
        assert served.get("/r/one/3", accept="*/*").status_code == 200
    finally:
        served.close()


def test_server_starts_the_recipe_before_the_first_page(trained, tmp_path, recipe):
    command = [sys.executable, "-m", "penstock", "view", "--root", str(trained), "--port", "0"]
    server = subprocess.Popen([*command, "--recipe", recipe], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until((tmp_path / "began").exists, process=server)
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0
        assert b"Traceback" not in server.stderr.read()
    finally:
        server.kill()
        server.communicate()


def test_terminal_shows_that_the_recipe_starts(trained, tmp_path, recipe):
    async def running():
        data = OpenData(loader.Root(trained), recipe, quiet=True)
        try:
            app = ViewerApp(data, StepPage(run="one", step=2), "none")
            data.start()
            async with app.run_test(size=(200, 24)) as pilot:
                while "is starting" not in (told := str(app.screen.query_one("#waiting").render())):
                    assert "…" in told
                    await pilot.pause(0.1)
                assert recipe in told
                (tmp_path / "go").touch()
                await app.workers.wait_for_complete()
                await pilot.pause()
                assert not app.screen.query("#waiting")
        finally:
            (tmp_path / "go").touch()
            data.close()

    asyncio.run(running())
