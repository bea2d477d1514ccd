"""Names and English: phrases and names that are hard to read, counted in each file. The counts only fall.

What tests/style.txt still counts are reasons that tables and samples store, sides of an image (`left`), public names
(`pack(beside=)`), stored keys, and fixed terms of pages (a sample that was taken down).

`python tests/test_style.py` writes tests/style.txt anew; with paths it prints each hit in these files.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_PAGES, MOST_WORDS = 35, 54_250
"""Bounds of the documentation below docs/, counted as `wc -w` does."""
COUNTS = Path(__file__).parent / "style.txt"
PACKAGES = ("loader/", "penstock/", "resources/", "assets/", "dagster_project/")
PAGES_OF_RECORD = ("docs/upgrading.md", "docs/decisions/")
"""Pages that quote old names and messages."""

# fmt: off
NAMES = {
    "beside", "found", "given", "gone", "left", "look", "made", "mine", "one", "said", "some", "taken", "told",
    "wanted", "way",
}
# fmt: on
"""Participles and pronouns that name nothing."""

PHRASES = {
    "a sentence that begins with Of, What, That which": r"(?:^|[.!?:]\s+)(?:Of|What|That which|One of which)\b",
    "those that, that of": r"\b(?:those (?:that|of|which|whose)|(?<!so )(?<!of )that of)\b",
    "so is, so do": r"(?:^|[;,.]\s+)so (?:is|are|do|does|has|have)\b",
    "a passive without an actor": r"\b(?:is|are|was|were|be|been) (?:told|held|met|taken|had|given back)\b",
    "somebody, nobody, whoever": r"\b(?:[Ss]omebody|[Nn]obody|[Ww]hoever|[Ww]hosoever|[Aa]nybody)\b",
    "code that knows, says or believes": r"\b(?:knows|says|believes|tells|has a word)\b",
    "as before": r"\bas before\b",
    "alone for only": r"\b(?:alone)\b",
    "until then not": r"\buntil then not\b",
    "picture, film, sound for image, video, audio": r"\b(?:[Pp]ictures?|[Ff]ilms?|[Ss]ounds?)\b",
    "way back, look back": r"\b(?:way back|[Ll]ooks? back)\b",
}
"""What STYLE calls hard to read -> its pattern."""
EXPRESSIONS = {what: re.compile(pattern, re.M) for what, pattern in PHRASES.items()}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of a file's English: docstrings, comments and strings of Python; a page without its code."""
    text = path.read_text()
    if path.suffix == ".md":
        bare = re.sub(r"```.*?```|^::: \S+$", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
        yield 1, re.sub(r"`[^`\n]*`", "`c`", bare)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"`[^`\n]*`", "`c`", node.value)


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of what a module names badly; `one` may be the variable of a comprehension."""
    tree = ast.parse(path.read_text())
    within = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = "" if id(node) in within and node.id == "one" else node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        if name.strip("_").lower() in NAMES:
            yield node.lineno, name


def hits(path: Path) -> Iterator[str]:
    """Yield a line for each hit in a file."""
    for line, text in prose(path):
        for what, expression in EXPRESSIONS.items():
            for match in expression.finditer(text):
                at = line + text.count("\n", 0, match.start())
                yield f"{at}: {what}: {' '.join(text[max(0, match.start() - 20) : match.end() + 20].split())!r}"
    if path.suffix == ".py":
        for line, name in names(path):
            yield f"{line}: the name {name!r}"


def files() -> list[str]:
    """Return the modules of the packages and the pages of the documentation."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [
        name
        for name in listed.stdout.splitlines()
        if (name.startswith(PACKAGES) and name.endswith(".py"))
        or (name.endswith(".md") and name.startswith(("docs/", "README")))
        if not name.startswith(PAGES_OF_RECORD) and (ROOT / name).exists()
    ]


def counted() -> dict[str, int]:
    """Return file -> hits, of files with some."""
    counts = {name: sum(1 for _ in hits(ROOT / name)) for name in files()}
    return {name: n for name, n in sorted(counts.items()) if n}


def recorded() -> dict[str, int]:
    """Return what tests/style.txt allows."""
    return {name: int(n) for n, name in (line.split() for line in COUNTS.read_text().splitlines())}


def test_no_file_has_more_hits_than_recorded() -> None:
    allowed = recorded()
    more = {name: (n, allowed.get(name, 0)) for name, n in counted().items() if n > allowed.get(name, 0)}
    assert not more, f"file: (hits, allowed); `python tests/test_style.py FILE` prints them: {more}"


def test_hits_are_found(tmp_path: Path) -> None:
    module = tmp_path / "a.py"
    module.write_text('"""What is told."""\n\nfound = 1\nsame = [one for one in ()]\n# nobody\n')
    assert len(list(hits(module))) == 4
    page = tmp_path / "a.md"
    page.write_text("Read `those that` you need.\n\n```\nWhat\n```\n\nRead those that lie there.\n")
    assert [hit.partition(":")[0] for hit in hits(page)] == ["7"]


def test_pages_stay_few_and_short() -> None:
    """A page that is added takes the place of others, or this bound is decided anew."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    assert len(pages) <= MOST_PAGES
    assert sum(len(page.read_text().split()) for page in pages) <= MOST_WORDS


def main() -> None:
    """Print the hits of the named files, or write the counts."""
    for name in sys.argv[1:]:
        for path in sorted(Path(name).rglob("*.py")) if Path(name).is_dir() else [Path(name)]:
            for hit in hits(path):
                print(f"{path}:{hit}")
    if not sys.argv[1:]:
        counts = counted()
        COUNTS.write_text("".join(f"{n} {name}\n" for name, n in counts.items()))
        print(f"{sum(counts.values())} hits in {len(counts)} files")


if __name__ == "__main__":
    main()
