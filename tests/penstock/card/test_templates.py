"""An expression of a template is text, and escaped for the language of its file."""

import pytest
from jinja2 import TemplateAssertionError, UndefinedError

from penstock.card.render import templates
from tests.servers.processes import python

HOSTILE = "a|<b>\n\x1b[1m*"


def render_template(folder, name, text, **values):
    (folder / name).write_text(text)
    return templates(folder).get_template(name).render(values)


@pytest.mark.parametrize(
    ("name", "told"), [("a.html.j2", "a|&lt;b&gt; [1m*"), ("a.md.j2", "a&#124;&lt;b&gt; \\[1m\\*")]
)
def test_file_names_the_language_of_its_escapes(tmp_path, name, told):
    assert render_template(tmp_path, name, "{{ x }}", x=HOSTILE) == told
    assert (
        render_template(tmp_path, f"2{name}", "{% autoescape false %}{{ x }}{% endautoescape %}", x=HOSTILE)
        == told
    )
    macro = "{% macro m(x) %}*<i>{{ x }}{% endmacro %}{{ m(x) }}"
    assert render_template(tmp_path, f"3{name}", macro, x=HOSTILE) == f"*<i>{told}"
    block = "{% set y %}{{ x }}{% endset %}{{ y }}"
    assert render_template(tmp_path, f"4{name}", block, x=HOSTILE) == told


def test_file_of_no_known_language_shows_nothing(tmp_path):
    with pytest.raises(KeyError):
        render_template(tmp_path, "a.js.j2", "{{ x }}", x="1")


@pytest.mark.parametrize("name", ["safe", "e", "escape", "forceescape", "tojson", "urlize", "xmlattr"])
def test_no_template_says_that_a_text_is_safe(tmp_path, name):
    with pytest.raises(TemplateAssertionError, match="No filter"):
        render_template(tmp_path, "a.html.j2", f"{{{{ x | {name} }}}}", x=HOSTILE)


def test_name_that_is_not_given_is_an_error(tmp_path):
    with pytest.raises(UndefinedError):
        render_template(tmp_path, "a.html.j2", "{{ missing }}")


def test_missing_engine_is_named_with_its_pip_line():
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from loader.errors import MissingDependency\n"
        "from penstock.card.render import table\n"
        "try: table(['a'], [['b']])\n"
        "except MissingDependency as error: print(error)\n"
    )
    done = python("-c", code, check=True)
    assert "pip install 'penstock-data[card]'" in done.stdout
    assert "'jinja2'" in done.stdout
