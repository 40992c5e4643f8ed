"""The folders of `lazybench` import only earlier ones of their order, and no modules import each other in a circle.

Imports inside functions and for type checkers count, too.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lazybench
import lazyllm

ROOT = Path(lazybench.__file__).parent
# What happens to a record, from settings to the command line. Folders of one line know nothing of each other.
ORDER = (
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
)
FLOOR = {name: floor for floor, names in enumerate(ORDER) for name in names}


def imports(path, package):
    """Yield what a file imports from a package, anywhere in the file, without the package's own name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name"
            modules = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        else:
            continue
        yield from (module.removeprefix(f"{package}.") for module in modules if module.startswith(f"{package}."))


@pytest.mark.parametrize("part", sorted(FLOOR))
def test_each_part_imports_only_parts_before_it(part):
    folder = ROOT / part
    files = list(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    assert files
    for path in files:
        names = {name.split(".")[0] for name in imports(path, "lazybench")}
        later = {name for name in names if name != part and FLOOR[name] >= FLOOR[part]}
        assert not later, f"{path.relative_to(ROOT)} imports {', '.join(sorted(later))}"


def test_no_circle():
    paths = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in ROOT.rglob("*.py")}
    modules = {name.removesuffix("/__init__").replace("/", "."): path for name, path in paths.items()}
    graph = {}
    for module, path in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imports(path, "lazybench")}
        graph[module] = names - {module}
    TopologicalSorter(graph).prepare()


def test_every_part_is_in_the_order():
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert parts - {"__init__"} == set(FLOOR)
    assert len([path for path in ROOT.iterdir() if path.name != "__pycache__"]) <= 20


def test_only_public_names_of_lazyllm_are_imported():
    files = [path for folder in (ROOT, ROOT.parent / "scripts") for path in folder.rglob("*.py")]
    imported = {name: path for path in files for name in imports(path, "lazyllm")}
    assert {"LazyLLMError", "Stats"} <= imported.keys()
    assert not {name: path for name, path in imported.items() if name not in lazyllm.__all__}
