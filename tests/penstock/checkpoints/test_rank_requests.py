"""Requests to the processes of `ranks.py`, which name a function in text."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_each_request_names_a_function_of_the_ranks():
    """Most tests that name one run at night only."""
    tree = ast.parse((FOLDER / "ranks.py").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    requested = set()
    for path in FOLDER.rglob("test_*.py"):
        requested.update(re.findall(r'\branks\(\s*\w+,\s*"(\w+)"', path.read_text()))
    assert {"load", "save", "save_near_steps", "save_near_with_a_pause"} <= requested
    assert requested <= functions
