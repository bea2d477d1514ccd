"""Options of the command line: text where text is meant."""

import pytest

from loader.errors import InvalidStore
from penstock.verbs.verb import option, parse_options
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["key=12345678", "secret=0123"], {"key": "12345678", "secret": "0123"}),
        (["account_name=1234", "anon=true"], {"account_name": "1234", "anon": True}),
        (["max_concurrency=32", "timeout_s=2.5"], {"max_concurrency": 32, "timeout_s": 2.5}),
        (["fsspec.key=12", "fsspec.port=22"], {"fsspec": {"key": "12", "port": 22}}),
        (["secret=true", "token=null", "region=NaN"], {"secret": "true", "token": "null", "region": "NaN"}),
        (['token={"type": "service_account"}'], {"token": {"type": "service_account"}}),
    ],
)
def test_keys_of_digits_are_text(given: list[str], options):
    assert parse_options([option(text) for text in given]) == options


@pytest.mark.parametrize("given", [["fsspec=x", "fsspec.key=1"], ["fsspec.key=1", "fsspec=x"]])
def test_value_and_names_below_it_are_refused(given: list[str]):
    last_name = given[-1].partition("=")[0]
    with refusal(InvalidStore, what=f"option {last_name}", given="fsspec"):
        parse_options([option(text) for text in given])
