"""Every property of a collector holds."""

import ast
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent / "properties.py").read_text()
(NAMES,) = (
    [one.id for one in node.value.elts]
    for node in ast.parse(TEXT).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ALL"
)


@pytest.mark.parametrize("name", NAMES)
def test_collector_holds(properties, name):
    getattr(properties, name)()
