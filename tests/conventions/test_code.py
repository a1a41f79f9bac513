"""Rules of the house that no linter knows, checked on the syntax of the whole package."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from edgesim.config.plugins import ABSTRACT, PACKAGES, plugins_of
from edgesim.core.job import Job, Prices
from edgesim.records.schema import REAL, TABLES
from edgesim.world.fleet import Fleet
from tests.conventions.source_tree import ROOT, Source, imported, is_for_type_checkers, sources, walk

FILE_LINES, TEST_LINES, NESTING = 700, 700, 3
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[Source, Function]]:
    """Yield every function and method of the package."""
    for source, node in walk():
        if isinstance(node, Function):
            yield source, node


@cache
def attributes() -> Sequence[tuple[Source, ast.Attribute, str]]:
    """Return every attribute that the package asks for, with its file and its text."""
    return [(source, node, dotted(node)) for source, node in walk() if isinstance(node, ast.Attribute)]


def dotted(node: ast.expr) -> str:
    """Return the text of an expression; that of a dotted name costs little."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def calls(pattern: str, *but: str) -> list[str]:
    """Return where the package uses a dotted name that matches, outside the modules `but`."""
    return [
        f"{source.at(node)} {text}"
        for source, node, text in attributes()
        if source.module not in but and re.search(pattern, text)
    ]


def imports(pattern: str, *but: str) -> list[str]:
    """Return where the package imports a dotted name that matches, outside the modules `but`."""
    return [
        f"{source.at(node)} imports {name}"
        for source, node in walk()
        if source.module not in but
        for name in imported(node)
        if re.fullmatch(pattern, name)
    ]


# --- gradients, randomness and time -----------------------------------------------------------------------------


def test_gradients_are_taken_in_one_module():
    """Whoever needs a gradient asks edgesim.learning.train.loop for it."""
    ways = r"(autograd\.(grad|backward|functional\.\w+)|func\.(grad\w*|vjp|jvp|jac\w+|hessian))$"
    called = [(source, dotted(node.func)) for source, node in walk() if isinstance(node, ast.Call)]
    assert [source.module for source, name in called if name.endswith(".backward")] == []
    loop = "edgesim.learning.train.loop"
    assert calls(ways, loop) == []
    assert imports(r"torch\.(autograd|func)\.(grad|vjp|jvp|jac\w+|hessian|backward)", loop) == []
    assert calls(ways) != []  # and it does take them


def test_no_global_randomness():
    """Draws come from keyed streams: no module-level generator of NumPy, Python or torch, no counted spawns."""
    around_apps, seeding = "edgesim.flower.process_state", "edgesim.learning.models.seeding"  # users' code draws
    assert calls(r"^(np|numpy)\.random\.(?!Generator$)", "edgesim.core.rng", seeding, around_apps) == []
    assert calls(r"^torch\.(manual_seed|seed|cuda\.manual_seed\w*|random\.)", seeding, around_apps) == []
    assert calls(r"\.spawn$") == []
    putting_back = "edgesim.foreign.isolation"  # its names, if users' code replaced them
    assert imports(r"random|secrets|uuid|numpy\.random(\..*)?", seeding, around_apps, putting_back) == []
    draws = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")}
    unkeyed = [
        source.at(node)
        for source, node in walk()
        if isinstance(node, ast.Call) and dotted(node.func) in draws
        if "generator" not in {keyword.arg for keyword in node.keywords}
    ]
    assert unkeyed == []


def test_no_wall_clock():
    """Only what reports host seconds may know them, or the date of a run, or waits for others."""
    allowed = [f"runs.{name}" for name in ("simulate", "recording", "estimate", "host_time", "progress", "calibrate")]
    allowed += ["runs.host_memory", "studies.eta"]  # seconds until a scenario is built, and those of running cells
    allowed += ["files.loaded_code", "files.code_identity"]  # when files were changed
    allowed += ["execution.result_cache", "cli.watch", "cli.watch_page", "cli.parts", "records.lock"]
    allowed += ["execution.ray_cluster"]  # how long a cluster has been silent
    allowed += [f"flower.{name}" for name in ("app_time", "client", "compat")]  # time as apps see it, and their seconds
    allowed += ["foreign.counted"]  # processor seconds of users' code
    assert imports(r"(time|datetime)(\..*)?", *(f"edgesim.{name}" for name in allowed)) == []


def test_files_of_users_are_read_in_a_few_places():
    """Who decodes a format asks edgesim.files.reading first whether the file ends and fits into memory."""
    tables = r"^(pd\.read_\w+|np\.(load\w*|genfromtxt|fromfile)|pq\.(read_table|ParquetFile)|csv\.(reader|DictReader))$"
    shipped = "edgesim.learning.data.sources.digits"  # reads a file of scikit-learn
    readers = ("edgesim.files.reading", "edgesim.files.tables", shipped)
    assert calls(tables, *readers) == []
    assert calls(tables) != []
    assert calls(r"^(Image\.open|zipfile\.ZipFile|gzip\.open)$", "edgesim.learning.data.file_formats") == []


BETWEEN_PROCESSES = tuple(f"edgesim.execution.{name}" for name in ("processes", "ray_cluster", "shared_memory"))


def test_no_file_is_read_with_pickle():
    """Reading a file runs no code. Processes send each other objects; torchvision unpickles files that it knows."""
    assert calls(r"^(pickle\.(load|Unpickler)|torch\.load|np\.load)$") == []
    assert imports(r"(pickle|shelve|dill|joblib|cloudpickle)(\..*)?", *BETWEEN_PROCESSES) == []
    keywords = [(source, node) for source, node in walk() if isinstance(node, ast.keyword)]
    assert [source.at(node.value) for source, node in keywords if node.arg == "allow_pickle" and
            ast.unparse(node.value) != "False"] == []  # fmt: skip


# --- names ------------------------------------------------------------------------------------------------------


def test_no_code_knows_a_part_by_name():
    """What a method, model, data set, backend or accelerator does is in its class, never behind `if name == ...`."""
    names = {name for kind in ("method", "model", "data", "backend") for name in plugins_of(kind)} | {"cuda", "mps"}
    names -= {"hf", "torch", "instructions"}  # a variant of Per-FedAvg, the library, and kinds of made-up records
    assert len(names) > 20
    wrong = []
    for source, node in walk():
        if isinstance(node, ast.Compare | ast.MatchValue):
            texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            wrong += [f"{source.at(node)} asks for {name!r}" for name in texts & names]
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".startswith", ".endswith")):
            texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            wrong += [f"{source.at(node)} asks for {name!r}" for name in texts & names]
    assert wrong == []


MONEY = {"cost", "cost_low", "cost_high", "total_cost", "total_cost_low", "total_cost_high"}  # in the run's currency
UNITLESS = {"loss", "accuracy", "staleness_mean", "value", *MONEY}
UNIT = re.compile(r"(_s|_j|_w|_g|_hz|_bps|_per_bit|_bytes|flops|flops_per_s)$")


def test_columns_carry_their_unit():
    """Every physical column of a table, a job and a fleet says its unit; whatever counts bytes ends in _bytes."""
    columns = [(table, name, kind) for table, kinds in TABLES.items() for name, kind in kinds.items()]
    assert [c for c in columns if c[2] == REAL and c[1] not in UNITLESS and not UNIT.search(c[1])] == []
    assert [c for c in columns if "byte" in c[1] and not c[1].endswith("_bytes")] == []
    for cls, physical, least in ((Job, "float", 2), (Fleet, "Arr", 8)):
        fields = [field.name for field in dataclasses.fields(cls) if field.type == physical]
        assert len(fields) >= least
        assert [name for name in fields if not UNIT.search(name)] == []
    assert [name for name in Prices._fields if name not in UNITLESS and not UNIT.search(name)] == []


# --- modules ----------------------------------------------------------------------------------------------------

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.Assign, ast.AnnAssign)
# Calls that do something, besides making a value, or that take long.
EFFECTS = re.compile(
    r"(^|\.)(open|print|input|exec|eval|import_module|__import__|run|Popen|getenv|mkdir|register\w*|(read|write|load)\w*"
    r"|default_rng|manual_seed|seed|parts_of|find)$"
)


def test_nothing_happens_at_import():
    """A module defines names. It opens, prints, draws and registers nothing."""
    wrong = []
    for source in sources():
        for statement in source.tree.body:
            doc = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            main = isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
            main |= ast.unparse(statement) == "note_imports()"  # or the code of plug-ins would not be known
            if doc or main or is_for_type_checkers(statement):
                continue
            if not isinstance(statement, DEFINITIONS):
                wrong.append(f"{source.at(statement)} {ast.unparse(statement)[:60]}")
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                called = [ast.unparse(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)]
                wrong += [f"{source.at(statement)} calls {name}" for name in called if EFFECTS.search(name)]
    assert wrong == []


def test_everything_public_is_explained():
    """Modules, and public classes, functions and methods of public classes, have a docstring."""
    wrong = []
    for source in sources():
        empty = not source.tree.body
        if not empty and ast.get_docstring(source.tree) is None:
            wrong.append(source.at(source.tree))
        for node in _public(source.tree.body):
            if ast.get_docstring(node) is None:
                wrong.append(f"{source.at(node)} {node.name}")
    assert wrong == []


def _public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            yield from _public(node.body) if isinstance(node, ast.ClassDef) else ()


PLUGINS = [(kind, name, cls) for kind in PACKAGES for name, cls in plugins_of(kind).items()]


@pytest.mark.parametrize(("kind", "name", "cls"), PLUGINS, ids=[f"{kind}-{name}" for kind, name, _ in PLUGINS])
def test_parts_are_frozen_dataclasses(kind, name, cls):
    """A part is its fields: frozen, by keyword only, equal if they are, explained in its own words."""
    assert issubclass(cls, ABSTRACT[kind].load())
    settings = cls.__dataclass_params__
    assert settings.frozen
    assert settings.eq
    assert all(field.kw_only for field in dataclasses.fields(cls) if field.init)
    assert "__dataclass_params__" in vars(cls)
    assert vars(cls).get("__doc__")
    assert not cls.__doc__.startswith(f"{cls.__name__}(")  # what dataclass writes if nobody else does


# --- sizes ------------------------------------------------------------------------------------------------------


def test_files_are_short():
    """A file tells one story, in at most 700 lines."""
    tests = {path: TEST_LINES for path in (ROOT / "tests").rglob("*.py")}
    limits = {**{source.path: FILE_LINES for source in sources()}, **tests}
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in limits}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > limits[path]} == {}


BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


def test_nesting_is_shallow():
    """At most three blocks inside each other; an elif is no deeper than its if."""
    depths = {f"{source.at(node)} {node.name}": depth(node) for source, node in functions()}
    assert {name: n for name, n in depths.items() if n > NESTING} == {}


def depth(node: ast.AST, is_elif: bool = False) -> int:
    """Return how many blocks lie inside each other below a node, itself included."""
    orelse = node.orelse if isinstance(node, ast.If) else []
    elif_ = orelse[0] if len(orelse) == 1 and isinstance(orelse[0], ast.If) else None
    inner = [depth(child, child is elif_) for child in ast.iter_child_nodes(node) if not isinstance(child, Function)]
    return max(inner, default=0) + (isinstance(node, BLOCKS) and not is_elif)


# --- what is committed ------------------------------------------------------------------------------------------

FOLDERS = ("edgesim", "tests", "benchmarks", "analysis", "scenarios", "docs")
TEXTS = {".py", ".toml", ".md", ".csv", ".json", ".ipynb", ".yml", ".txt"}
# Written with classes of one letter, so that this file does not find itself.
PRIVATE = re.compile(r"(?<![\w.])/(wor[k]|roo[t]|tm[p]|hom[e])/|pypi[.]or[g]|pythonhoste[d]")


def test_no_word_about_the_machine_it_was_made_on():
    """Neither paths of one machine nor hosts of package registries are written down."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    files += [path for path in ROOT.iterdir() if path.suffix in TEXTS]
    found = {str(path.relative_to(ROOT)): PRIVATE.search(path.read_text(encoding="utf-8")) for path in files}
    assert {name: match.group() for name, match in found.items() if match} == {}
