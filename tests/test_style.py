"""Names, English and density: what is hard to read, counted in each file and each room. The counts only fall.

What tests/style.txt still counts are reasons that tables and samples store, sides of an image (`left`), public names
(`pack(beside=)`, `error.given`), stored keys, and fixed terms of pages (a sample that was taken down).

tests/density.txt holds the figures of each room, a folder of two names such as loader/order, and below them the
modules that are too dense for a new one. Two tolerances keep small, unrelated commits green: the figures are rounded
in favour of the room (`STEP`), and a room may exceed one by a few lines' worth (`SLACK`). A room that has reached
`AIM` may move below it. A module that moves to another room takes its figures along: edit the file by hand.

`python tests/test_style.py` writes these files and tests/matches.txt anew, and lets no figure of a room rise; with
paths it prints each hit in these files, and the figures of each module.
"""

import ast
import io
import math
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_PAGES, MOST_WORDS = 36, 64_578
"""Bounds of the documentation below docs/, counted as `wc -w` does, without the words of `MEASURED`."""
MEASURED = "benchmarks*.md"
"""Pages that programs write."""
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


def count_hits() -> dict[str, int]:
    """Return file -> hits, of files with some."""
    counts = {name: sum(1 for _ in hits(ROOT / name)) for name in files()}
    return {name: n for name, n in sorted(counts.items()) if n}


def read_record() -> dict[str, int]:
    """Return what tests/style.txt allows."""
    return {name: int(n) for n, name in (line.split() for line in COUNTS.read_text().splitlines())}


def test_no_file_has_more_hits_than_recorded() -> None:
    allowed = read_record()
    more = {name: (n, allowed.get(name, 0)) for name, n in count_hits().items() if n > allowed.get(name, 0)}
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
    written = [page for page in pages if not page.match(MEASURED)]
    assert sum(len(page.read_text().split()) for page in written) <= MOST_WORDS


MATCHES = Path(__file__).parent / "matches.txt"
"""How many `match=` the tests of each room have: they pin the English of an error, and `refusal` its fields."""


def matches() -> dict[str, int]:
    """Return room of the tests -> number of `match=` in its modules."""
    counts: Counter[str] = Counter()
    for path in Path(__file__).parent.rglob("*.py"):
        n = len(re.findall(r"\bmatch=", path.read_text()))
        counts[room(path.relative_to(ROOT / "tests").as_posix()) or "."] += n
    return {name: n for name, n in sorted(counts.items()) if n}


def read_matches() -> dict[str, int]:
    """Return room of the tests -> number of `match=` that it may have, from tests/matches.txt."""
    lines = MATCHES.read_text().splitlines()
    return {name: int(n) for n, name in (line.split() for line in lines)}


def test_no_room_pins_more_texts_than_recorded() -> None:
    allowed = read_matches()
    more = {name: (n, allowed.get(name, 0)) for name, n in matches().items() if n > allowed.get(name, 0)}
    assert not more, f"room: (match=, allowed); assert fields with tests/refusals.py instead: {more}"


def write_matches() -> None:
    """Write tests/matches.txt; no room gets a higher number."""
    allowed = read_matches()
    lower = {name: min(n, allowed.get(name, 0)) for name, n in matches().items()}
    MATCHES.write_text("".join(f"{n} {name}\n" for name, n in lower.items() if n))
    print(f"{sum(lower.values())} match= in {len(lower)} rooms")


DENSITY = Path(__file__).parent / "density.txt"
FIGURES = ("nodes", "tuples", "conditionals", "comments")
"""AST nodes per line of code; `a, b = x, y` and `x if y else z` per 1,000 lines of code; comments in % of all lines."""
STEP = {"nodes": 0.2, "tuples": 1, "conditionals": 1, "comments": 0.1}
"""Figures are stored as multiples of these, rounded in favour of the room."""
SLACK = {"nodes": 200, "tuples": 2, "conditionals": 4, "comments": 4}
"""Nodes, assignments, expressions and lines by which a room may exceed its figures."""
AIM = {"nodes": 8.0, "tuples": 5, "conditionals": 15, "comments": 2.5}
DENSEST_NEW, DENSE_FROM = 8.5, 8.3
"""Nodes a line of a new module; the older ones from `DENSE_FROM` on are listed, so that 0.2 is left to the others."""
FEWEST_LINES = 40
"""Modules of fewer lines of code are not judged one by one: their imports decide."""


def density(path: Path) -> Counter[str]:
    """Return how many lines, lines of code, comments, nodes, tuple assignments and conditionals a module has."""
    text = path.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    docstrings: set[int] = set()
    for node in nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = text.splitlines()
    count = Counter(all_lines=len(lines), nodes=len(nodes))
    for number, line in enumerate(lines, 1):
        begins_as_comment = line.lstrip().startswith("#")
        count["comments"] += begins_as_comment or "  # " in line
        count["code"] += bool(line.strip()) and not begins_as_comment and number not in docstrings
    for node in nodes:
        count["conditionals"] += isinstance(node, ast.IfExp)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            count["tuples"] += isinstance(node.value, ast.Tuple)
    return count


def figures(count: Counter[str]) -> dict[str, float]:
    """Return the figures of a room or a module from its counts."""
    code = max(1, count["code"])
    return {
        "nodes": count["nodes"] / code,
        "tuples": 1000 * count["tuples"] / code,
        "conditionals": 1000 * count["conditionals"] / code,
        "comments": 100 * count["comments"] / max(1, count["all_lines"]),
    }


def room(name: str) -> str:
    """Return the folder of at most two names that a module is in."""
    return "/".join(name.split("/")[:-1][:2])


@cache
def densities() -> tuple[dict[str, Counter[str]], dict[str, float]]:
    """Return room -> its counts, and module -> nodes a line if it is long enough to be judged."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    modules: dict[str, float] = {}
    for name in files():
        if not name.endswith(".py"):
            continue
        count = density(ROOT / name)
        rooms[room(name)].update(count)
        if count["code"] >= FEWEST_LINES:
            modules[name] = count["nodes"] / count["code"]
    return dict(sorted(rooms.items())), modules


def read_densities() -> tuple[dict[str, dict[str, float]], set[str]]:
    """Return room -> its figures, and the modules that may be dense, from tests/density.txt."""
    rooms: dict[str, dict[str, float]] = {}
    dense: set[str] = set()
    for line in DENSITY.read_text().splitlines():
        *numbers, name = line.split()
        if numbers == ["dense"]:
            dense.add(name)
        else:
            rooms[name] = dict(zip(FIGURES, map(float, numbers), strict=True))
    return rooms, dense


def excesses(count: Counter[str], allowed: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return figure -> (what the room has, what it may have), of figures that it exceeds."""
    out = {}
    for name, value in figures(count).items():
        if name == "comments":
            fewest = min(allowed[name], AIM[name]) * count["all_lines"] / 100
            is_worse = count[name] < fewest - SLACK[name]
        else:
            per_line = max(allowed[name], AIM[name]) / (1 if name == "nodes" else 1000)
            is_worse = count[name] > per_line * count["code"] + SLACK[name]
        if is_worse:
            out[name] = (round(value, 2), allowed[name])
    return out


def test_no_room_is_denser_than_recorded() -> None:
    allowed, _ = read_densities()
    rooms, _ = densities()
    worse = {}
    for name, count in rooms.items():
        excess = excesses(count, allowed.get(name, AIM))
        if excess:
            worse[name] = excess
    assert not worse, (
        f"room: figure: (now, allowed); `python tests/test_style.py ROOM` prints each module's: {worse}"
    )


def test_new_module_has_few_nodes_a_line() -> None:
    _, dense = read_densities()
    _, modules = densities()
    worse = {
        name: round(value, 1) for name, value in modules.items() if value > DENSEST_NEW and name not in dense
    }
    assert not worse, f"more than {DENSEST_NEW} nodes a line: one statement does one step: {worse}"


def test_density_counts_each_figure(tmp_path: Path) -> None:
    module = tmp_path / "a.py"
    module.write_text('"""Text\n\nof three lines."""\n\n# why\na, b = 1, 2\nc = a if b else 0  # why\n')
    count = density(module)
    assert (count["all_lines"], count["code"], count["comments"]) == (7, 2, 2)
    assert (count["tuples"], count["conditionals"]) == (1, 1)
    assert figures(count)["tuples"] == 500


def test_room_exceeds_its_figures_only_by_the_slack() -> None:
    allowed = {"nodes": 10.0, "tuples": 10.0, "conditionals": 20.0, "comments": 1.0}
    count = Counter(all_lines=1000, code=1000, nodes=10_200, tuples=12, conditionals=24, comments=6)
    assert excesses(count, allowed) == {}
    for name in FIGURES:
        worse = Counter(count)
        worse[name] += -1 if name == "comments" else 1
        assert list(excesses(worse, allowed)) == [name]


def round_figure(name: str, value: float, former: float | None) -> float:
    """Return a figure as the file holds it: rounded in favour of the room, and no worse than the former one."""
    step = STEP[name]
    steps = round(value / step, 6)  # 0.6 / 0.2 is 2.9999999999999996
    if name == "comments":
        rounded = math.floor(steps) * step
        return rounded if former is None else max(rounded, former)
    rounded = math.ceil(steps) * step
    return rounded if former is None else min(rounded, former)


def write_densities() -> None:
    """Write tests/density.txt. A recorded room gets no worse figure, and no module becomes a dense one."""
    former_rooms, former_dense = read_densities()
    rooms, modules = densities()
    lines = []
    for room_name, count in rooms.items():
        former = former_rooms.get(room_name, {})
        stored = [round_figure(name, value, former.get(name)) for name, value in figures(count).items()]
        lines.append(f"{' '.join(f'{value:.1f}' for value in stored)} {room_name}\n")
    dense = sorted(name for name, value in modules.items() if value > DENSE_FROM and name in former_dense)
    lines += [f"dense {name}\n" for name in dense]
    DENSITY.write_text("".join(lines))
    print(f"{len(dense)} modules have more than {DENSE_FROM} nodes a line")


def main() -> None:
    """Print the hits and the figures of the named files, or write the counts."""
    for name in sys.argv[1:]:
        for path in sorted(Path(name).rglob("*.py")) if Path(name).is_dir() else [Path(name)]:
            for hit in hits(path):
                print(f"{path}:{hit}")
            if path.suffix == ".py":
                print(
                    f"{path}:",
                    ", ".join(f"{value:.1f} {what}" for what, value in figures(density(path)).items()),
                )
    if not sys.argv[1:]:
        counts = count_hits()
        COUNTS.write_text("".join(f"{n} {name}\n" for name, n in counts.items()))
        print(f"{sum(counts.values())} hits in {len(counts)} files")
        write_densities()
        write_matches()


if __name__ == "__main__":
    main()
