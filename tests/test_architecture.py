"""The house: who may import whom, what `import loader` costs, what the wheel holds."""

import ast
import importlib
import inspect
import itertools
import re
import shutil
import subprocess
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
PACKAGES = ("loader", "penstock", "resources", "assets", "dagster_project")
"""Each may import those before it, and itself."""

FORBIDDEN = {
    "loader": {"dagster", "great_expectations"},
    "penstock": {"dagster", "great_expectations"},
}
UPWARD = {"loader.api": "penstock.formats.open_foreign"}
"""The one import against the direction: `loader.open_foreign`, on first use."""
LONG = {
    "loader.run.loader.__init__",
    "penstock.upkeep.gc.collector.collect",
    "penstock.upkeep.takedown.prove.prove",
    "assets.ingest.units.units_stage",
    "assets.samples.samples_asset.samples_stage",
    "dagster_project.sensors.discovery.discovery_sensor",
}
"""Functions above 60 lines; nothing is added here."""
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core"}


def modules(package: str) -> dict[str, Path]:
    """Dotted name -> file of every module of a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def syntax(path: Path) -> ast.Module:
    """Return the syntax of a module; each is parsed once, and dropped after the last test."""
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def syntax_is_dropped() -> Iterator[None]:
    yield
    syntax.cache_clear()


def absolute_origin(node: ast.ImportFrom, package: str) -> str:
    """Return the `a.b` of `from a.b import c` in a module of the package, also of a relative import."""
    if not node.level:
        return node.module or ""
    above = package.split(".")
    names = above[: len(above) - node.level + 1]
    if node.module:
        names.append(node.module)
    return ".".join(names)


def imports(name: str, path: Path, *, at_import_only: bool) -> set[str]:
    """Absolute dotted names that a module imports (of `from a import b`: both a and a.b)."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    out: set[str] = set()

    def visit(node: ast.AST) -> None:
        if at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if at_import_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            out.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute_origin(node, package)
            out.add(origin)
            out.update(f"{origin}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(syntax(path))
    return out


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    later = set(PACKAGES[PACKAGES.index(package) + 1 :]) | FORBIDDEN.get(package, set())
    later |= {"tests", "benchmarks", "examples"}
    wrong = [
        f"{name} imports {target}"
        for name, path in modules(package).items()
        for target in imports(name, path, at_import_only=False)
        if target.split(".")[0] in later and not target.startswith(UPWARD.get(name, "nothing"))
    ]
    assert not wrong, wrong


def project_imports() -> dict[str, set[str]]:
    """Return module -> modules of the project that it imports, also in functions and only for types."""
    paths = {name: path for package in PACKAGES for name, path in modules(package).items()}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        targets: set[str] = set()
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = absolute_origin(node, package)
                for alias in node.names:
                    module = f"{origin}.{alias.name}"
                    targets.add(module if module in paths else origin)
        graph[name] = (targets & paths.keys()) - {name, UPWARD.get(name)}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of two or more modules, by Kosaraju's two walks."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            users[target].add(name)
    order: list[str] = []
    walked: set[str] = set()
    for name in sorted(graph):
        order += walk(graph, name, walked)
    components = []
    walked = set()
    for name in reversed(order):
        component = walk(users, name, walked)
        if len(component) > 1:
            components.append(sorted(component))
    return sorted(components)


def walk(graph: Mapping[str, set[str]], start: str, walked: set[str]) -> list[str]:
    """Return what a walk from `start` reaches first, each module after what it reaches. Adds to `walked`."""
    if start in walked:
        return []
    walked.add(start)
    order: list[str] = []
    stack = [(start, iter(sorted(graph.get(start, ()))))]
    while stack:
        name, targets = stack[-1]
        target = next((one for one in targets if one not in walked), None)
        if target is None:
            order.append(name)
            stack.pop()
        else:
            walked.add(target)
            stack.append((target, iter(sorted(graph.get(target, ())))))
    return order


def test_no_imports_form_a_circle() -> None:
    """Counts imports for types and in functions too."""
    assert circles(project_imports()) == []


def test_circle_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set[str](), "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_at_most_20_modules_of_450_lines(package: str) -> None:
    counted = Counter(path.parent for path in modules(package).values() if path.name != "__init__.py")
    too_many = [
        str(folder) for folder, n in counted.items() if n > 20 and folder != ROOT / "penstock" / "verbs"
    ]
    too_long = [name for name, path in modules(package).items() if len(path.read_text().splitlines()) > 450]
    assert (too_many, too_long) == ([], [])


@pytest.mark.parametrize("package", PACKAGES)
def test_function_has_at_most_60_lines(package: str) -> None:
    long = {
        f"{name}.{node.name}"
        for name, path in modules(package).items()
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    }
    assert long == {one for one in LONG if one.startswith(f"{package}.")}


def test_class_name_has_one_meaning() -> None:
    definitions: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for module, path in modules(package).items():
            for node in syntax(path).body:
                if isinstance(node, ast.ClassDef):
                    definitions[node.name].append(module)
    assert {name: where for name, where in definitions.items() if len(where) > 1} == {}


def import_names(code: str, *names: str) -> str:
    """Which of the names a new interpreter has imported after `code`."""
    code = f"import sys, {code}; print([m for m in {names!r} if m in sys.modules])"
    run = python("-c", code, check=True, cwd="/")
    return run.stdout.strip()


def test_import_loader_is_light() -> None:
    heavy = [
        "torch",
        "av",
        "polars",
        "PIL",
        "simplejpeg",
        "dagster",
        "great_expectations",
        "obstore",
        "boto3",
        "rich",
        "argcomplete",
        "jinja2",
        "textual",
        "pytest",
    ]
    assert import_names("loader.api, penstock.cli", *heavy) == "[]"


def test_what_only_moves_bytes_imports_no_arrays() -> None:
    code = "loader.storage, loader.storage.files, penstock.verbs, penstock.upkeep.migrate.prefix_copy"
    assert import_names(code, "numpy", "pyarrow", "loader.api") == "[]"


def test_name_is_handed_out_on_first_use() -> None:
    assert import_names("loader", "loader.api", "pyarrow") == "[]"
    assert import_names("loader; loader.Root", "loader.api", "pyarrow") == "['loader.api', 'pyarrow']"


def test_loader_has_its_names_its_rooms_and_no_others() -> None:
    import loader

    assert set(loader.__all__) <= set(dir(loader))
    assert loader.Plan is loader.order.plan.Plan
    with pytest.raises(AttributeError, match="module 'loader' has no attribute 'Rot'"):
        loader.Rot  # noqa: B018 - a misspelt name


def test_what_loader_exports_is_frozen() -> None:
    import loader

    assert loader.__all__ == [
        "ROLLOUT_GROUPS",
        "Batch",
        "Explanation",
        "Loader",
        "NodeCache",
        "OnlineBatches",
        "Part",
        "Plan",
        "Replay",
        "Root",
        "RunTrail",
        "Substitution",
        "Trail",
        "Version",
        "View",
        "World",
        "Writer",
        "audio",
        "backlog",
        "bucket",
        "by_bucket",
        "by_score",
        "delta_timestamps",
        "errors",
        "escape_key",
        "explain",
        "follow",
        "image",
        "items",
        "join_calls",
        "laid_out",
        "listed",
        "moving_rows",
        "norm",
        "normalise",
        "on",
        "online",
        "open_foreign",
        "open_plan",
        "pack",
        "plan",
        "plan_of",
        "random_resized_crop",
        "read_ledger",
        "read_trail",
        "report",
        "rollout",
        "rows",
        "source",
        "split_of",
        "synthetic",
        "times",
        "to_lerobot",
        "torch_dataset",
        "video",
        "windows",
        "write_part",
    ]
    assert all(hasattr(loader, name) for name in loader.__all__)


OPENERS = re.compile(r"(Of|What|Whoever|Who|Where|Which|Whether|How)\b")
SPECS = {
    "assets.spec": "DatasetSpec",
    "assets.sources": "Source",
    "assets.gate_settings": "Gate",
    "assets.drift.findings": "Thresholds",
    "loader.storage.spec": "StoreSpec",
    "loader.testing.stores": "Backend",
    "loader.testing.modalities": "Modality",
}
"""Public classes beside those that `loader` exports."""


def public_classes() -> list[type]:
    """The classes that `loader` exports, with their bases in the project, and `SPECS`."""
    import loader

    named = [getattr(importlib.import_module(path), name) for path, name in SPECS.items()]
    exported = [found for one in loader.__all__ if isinstance(found := getattr(loader, one), type)]
    bases = {base: None for one in (*exported, *named) for base in one.__mro__}
    return [one for one in bases if one.__module__.split(".")[0] in PACKAGES]


def class_node(of: type) -> ast.ClassDef:
    """The syntax of a class."""
    tree = ast.parse(Path(inspect.getfile(of)).read_text())
    (found,) = [
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == of.__name__
    ]
    return found


def is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def fields_without_docstring(of: ast.ClassDef) -> list[str]:
    """Return public fields without a docstring under them, also attributes that only `__init__` names."""
    bare, known = [], set()
    for node, after in zip(of.body, [*of.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.FunctionDef):
            known.add(node.name)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            known.add(node.target.id)
            if not node.target.id.startswith("_") and not is_text(after):
                bare.append(node.target.id)
    inits = [node for node in of.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    for node in (inner for one in inits for inner in ast.walk(one)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and not node.attr.startswith("_")
        ):
            bare += [node.attr] if node.attr not in known else []
    return bare


def test_every_public_field_has_its_docstring() -> None:
    bare = {one.__qualname__: fields_without_docstring(class_node(one)) for one in public_classes()}
    assert not {name: fields for name, fields in bare.items() if fields}


def test_field_without_a_docstring_is_seen() -> None:
    text = "class A:\n  a: int\n  'told'\n  b: int\n  _c: int\n  def __init__(self): self.d, self.a = 1, 2"
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    assert fields_without_docstring(node) == ["b", "d"]


def docstrings(tree: ast.AST) -> list[str]:
    """Of modules, classes, functions and fields."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]  # type: ignore[attr-defined]
    return [inspect.cleandoc(node.value.value) for body in bodies for node in body if is_text(node)]


def sentences(docstring: str) -> list[str]:
    """Sentences of a docstring; each item of a list, and each argument, begins one. Lists of errors are left out."""
    text = re.sub(r"\bRaises:? .*?(?=\n\s*\n|\Z)", "", docstring, flags=re.S)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:- |\*{0,2}\w+: ))", text)
    return [
        one for part in parts for one in re.split(r"(?<=[.!?:])\s+(?=[A-Z0-9`\"'])", " ".join(part.split()))
    ]


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield (dotted name, syntax) of every module."""
    for package in PACKAGES:
        for name, path in modules(package).items():
            yield name, syntax(path)


def test_docstrings_begin_with_their_subject_and_are_short() -> None:
    told = [(path, one) for path, tree in sources() for one in docstrings(tree)]
    assert len(told) > 5000
    assert [(path, one) for path, one in told if OPENERS.match(one)] == []
    assert [(path, s) for path, one in told for s in sentences(one) if len(s.split()) > 30] == []


FILLER = frozenset(re.findall(r"\w+", "a all an each for in is it of s that the their this whose"))


def word_stems(text: str) -> set[str]:
    """Words of a text or of a name in the singular, without those that say nothing."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ").lower()
    words = {re.sub("ies$", "y", word) for word in re.findall("[a-z0-9]+", spaced)}
    return {word.removesuffix("s") for word in words} - FILLER


def echoing_fields(of: ast.ClassDef) -> list[str]:
    """Return fields whose docstring only repeats the name of the field, of its type or of its class."""
    echoes = []
    for node, after in itertools.pairwise(of.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_text(after):
            docstring = ast.literal_eval(after.value)  # type: ignore[attr-defined]
            names = f"{node.target.id} {of.name} {ast.unparse(node.annotation)}"
            if word_stems(docstring) <= word_stems(names):
                echoes.append(node.target.id)
    return echoes


def test_no_docstring_of_a_field_repeats_its_name() -> None:
    """Public classes keep theirs: pages of the documentation list each field."""
    public = {one.__qualname__ for one in public_classes()}
    echoes = [
        f"{path}: {node.name}.{field}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name not in public
        for field in echoing_fields(node)
    ]
    assert echoes == []


def test_docstring_that_repeats_a_name_is_seen() -> None:
    text = "class PartPage:\n  size_bytes: int\n  'The size, in bytes.'\n  rows: int\n  'Rows, at most 64.'"
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    assert echoing_fields(node) == ["size_bytes"]


def test_long_sentence_and_a_bad_opener_are_seen() -> None:
    long = " ".join(["word"] * 31)
    assert [len(one.split()) for one in sentences(f"One.\n\n    a: {long}.\n    b: {long}.")] == [1, 32, 32]
    assert [len(one.split()) for one in sentences(f"One. Raises: {long}.\n\nTwo: {long}.")] == [1, 32]
    assert OPENERS.match("Which of them.")
    assert not OPENERS.match("Offset in bytes.")


def test_error_tree_is_the_one_drawn() -> None:
    from loader import errors

    leaves = {name for name, value in vars(errors).items() if isinstance(value, type)}
    for name in sorted(leaves):
        assert issubclass(getattr(errors, name), errors.PenstockError)
        assert name in (errors.__doc__ or ""), f"{name} is missing from the tree in the docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_is_inside(package: str) -> None:
    vague = [name for name in modules(package) if set(name.split(".")) & VAGUE]
    assert not vague


def test_environment_is_read_in_few_places() -> None:
    allowed = {
        "loader.dataset.root",  # PENSTOCK_ROOT
        "loader.dataset.tables.trusted_places",  # PENSTOCK_PLACES
        "loader.native",  # PENSTOCK_NATIVE
        "penstock.cli",  # PENSTOCK_ROOT, without what loader.dataset.root imports: a key was pressed
        "penstock.view.terminal.picture_cells",  # whether tmux or screen shows the terminal
        "dagster_project.own_datasets",  # PENSTOCK_DATASETS, which names code of another repository
        "loader.run.recipe.world",  # the launcher's rank and world size
        "loader.run.workers.fork_server",  # whether it has changed since the server was started
        "loader.run.workers.fork_server_main",  # JE_ARROW_MALLOC_CONF; handed on to workers that are started afresh
        "loader.local_ranks",  # the launcher's ranks of this machine
        "loader.cache.peers.environment",  # PENSTOCK_CACHE_TOKEN, the Slurm job, the launcher's meeting point
        "loader.storage.cloud.s3",  # endpoint, region and profile, as the provider's own tools read them
        "loader.storage.cloud.gcs",
        "loader.storage.cloud.azure",
        "penstock.view.replays.recipe_process",  # OMP_NUM_THREADS, which torch goes by in the recipe's process
        "penstock.formats.streaming_order",  # for the interpreter that has the library
        "penstock.train.launched",  # ranks, and what `penstock train` gives a run
        "penstock.train.trackers.mlflow_run",  # MLflow's experiment, as its own tools read it
        "penstock.train.trackers.tensorboard_run",  # the folder, as Transformers reads it
        "penstock.train.trackers.run_facts",  # PENSTOCK_VIEW_URL, as the pipeline reads it
        "penstock.train.launch.jobset_pod",  # the pod's index and meeting; handed on to its ranks
        "penstock.train.launch.local_loop",  # handed on to the ranks of this machine
        "penstock.train.launch.local_runs",  # handed on to the loop of a run
        "penstock.train.launch.run_end",  # PENSTOCK_ALERTS, as the pipeline reads it
        "penstock.train.launch.rank_guard",  # the parent that a rank ends with
        "penstock.compute.engines.kubernetes_api",  # whether this process is a pod, as the client finds its cluster
        "penstock.compute.runner_process",  # the node of a pod
        "penstock.compute.engines.local_engine",  # handed on to a runner of this machine
        "penstock.compute.engines.ray_engine",  # the token of a cluster, as Ray's own tools read it
        "penstock.compute.pool.environment",  # what workers receive of it, and the GPUs that they are bound to
    }
    readers = {
        name
        for package in PACKAGES
        for name, path in modules(package).items()
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    }
    assert readers <= allowed, sorted(readers - allowed)


ARROW_READS = {
    "ParquetFile": "pre_buffer",
    "iter_batches": "use_threads",
    "open_file": "options",
    "open_stream": "options",
    "read": "use_threads",
    "read_row_group": "use_threads",
    "read_row_groups": "use_threads",
    "read_table": "use_threads",
}
"""Method of pyarrow -> its argument that keeps Arrow's threads away."""


def test_arrow_reads_without_threads() -> None:
    """Threads of Arrow free Python's bytes late: a process that ends just then is aborted (1 of 15, machine busy)."""
    threaded = [
        f"{name}: {ast.unparse(call)}"
        for package in (*PACKAGES, "examples")
        for name, path in modules(package).items()
        if "import pyarrow.parquet" in (text := path.read_text()) or "pa.ipc" in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ARROW_READS
        if call.func.attr != "read" or any(word.arg == "columns" for word in call.keywords)
        if not any(word.arg == ARROW_READS[call.func.attr] for word in call.keywords)
    ]
    assert not threaded


def test_dagster_annotations_are_not_strings() -> None:
    postponed = [
        name
        for package in ("resources", "assets", "dagster_project")
        for name, path in modules(package).items()
        if "from __future__ import annotations" in path.read_text()
    ]
    assert not postponed, "Dagster cannot load an asset whose config annotation is a string"


def test_wheel_holds_loader_and_penstock(tmp_path: Path) -> None:
    shutil.rmtree(
        ROOT / "build", ignore_errors=True
    )  # setuptools would pack what an earlier build left there
    done = python("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
        kept = {"loader/py.typed", "penstock/card/rendering/style.css"}
        kept |= {str(path.relative_to(ROOT)) for path in (ROOT / "penstock").rglob("*.j2")}
        assert len(kept) > 6
        assert kept <= set(archive.namelist())
    assert {name for name in top if not name.endswith(".dist-info")} == {"loader", "penstock"}


def test_no_machine_or_registry_is_named() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    hosts = ["files.python" + "hosted.org", "registry.npm" + "js.org", "pypi." + "org/simple"]
    named = [
        (path, host)
        for path in tracked
        if path.endswith((".py", ".md", ".toml", ".txt", ".yaml", "Makefile"))
        for host in hosts
        if host in (ROOT / path).read_text()
    ]
    assert not named
