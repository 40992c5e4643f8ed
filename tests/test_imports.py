"""The parts of a package import only earlier ones of their order, and no modules of `lazybench` import in a circle.

Imports inside functions and for type checkers count, too.
"""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lazybench
import lazyllm

ROOT = Path(lazybench.__file__).parents[1]
# The parts of each package, folders and files. Those of one line do not import each other.
ORDERS = {
    "lazyllm": ({"reference", "core"}, {"rankings"}, {"hf"}, {"extras"}),
    # What happens to a record, from settings to the command line.
    "lazybench": (
        {"errors"},
        {"metrics", "rules", "token_map"},
        {"config"},
        {"identity"},
        {"data", "store"},
        {"analysis", "model"},
        {"methods"},
        {"run"},
        {"jobs", "speed", "matching"},
        {"report"},
        {"cli"},
        {"__main__"},
    ),
}
FLOORS = {
    package: {part: floor for floor, parts in enumerate(order) for part in sorted(parts)}
    for package, order in ORDERS.items()
}


def imported(path):
    """Yield the full names of all that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name"
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def imports(path, package):
    """Return what a file imports from a package, without the package's own name."""
    return {name.removeprefix(f"{package}.") for name in imported(path) if name.startswith(f"{package}.")}


@pytest.mark.parametrize(("package", "part"), [(package, part) for package in FLOORS for part in FLOORS[package]])
def test_each_part_imports_only_parts_before_it(package, part):
    floors, folder = FLOORS[package], ROOT / package / part
    for path in list(folder.rglob("*.py")) or [folder.with_suffix(".py")]:
        names = {name.split(".")[0] for name in imports(path, package)}
        later = {name for name in names if name != part and floors[name] >= floors[part]}
        assert not later, f"{path.relative_to(ROOT)} imports {', '.join(sorted(later))}"


@pytest.mark.parametrize("package", FLOORS)
def test_every_part_is_in_the_order(package):
    paths = (ROOT / package).iterdir()
    parts = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert parts - {"__init__"} == set(FLOORS[package])


def test_the_librarys_core_needs_torch_alone():
    for path in (ROOT / "lazyllm/core").glob("*.py"):
        others = {name.split(".")[0] for name in imported(path)} - sys.stdlib_module_names
        assert others <= {"torch", "lazyllm"}, path


def test_no_circle():
    root = ROOT / "lazybench"
    paths = {path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.py")}
    modules = {name.removesuffix("/__init__").replace("/", "."): path for name, path in paths.items()}
    graph = {}
    for module, path in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imports(path, "lazybench")}
        graph[module] = names - {module}
    TopologicalSorter(graph).prepare()


def test_only_public_names_of_lazyllm_are_imported():
    files = [path for folder in ("lazybench", "scripts") for path in (ROOT / folder).rglob("*.py")]
    names = {name for path in files for name in imports(path, "lazyllm")}
    assert {"LazyLLMError", "Stats"} <= names <= set(lazyllm.__all__)
