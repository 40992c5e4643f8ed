"""The folders of `lazybench` stand in an order, and each imports only what comes before it."""

import ast
from pathlib import Path

import pytest

import lazybench
import lazyllm

ROOT = Path(lazybench.__file__).parent
# What happens to a record, from settings to the command line. Folders of one line know nothing of each other.
ORDER = (
    {"errors"},
    {"config", "metrics", "token_map"},
    {"data", "store"},
    {"analysis", "model"},
    {"methods"},
    {"run"},
    {"jobs", "speed", "calibration"},
    {"report"},
    {"cli"},
    {"__main__"},
)
FLOOR = {name: floor for floor, names in enumerate(ORDER) for name in names}


def imports(path, package):
    """What a file imports from a package, at its top or in its functions: the names behind the package's own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name"
            modules = [node.module] if node.module != package else [f"{package}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        else:
            continue
        yield from (module.removeprefix(f"{package}.") for module in modules if module.startswith(f"{package}."))


@pytest.mark.parametrize("part", sorted(FLOOR))
def test_each_part_imports_only_parts_before_it(part):
    place = ROOT / part
    files = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert files
    for path in files:
        names = {name.split(".")[0] for name in imports(path, "lazybench")}
        behind = {name for name in names if name != part and FLOOR[name] >= FLOOR[part]}
        assert not behind, f"{path.relative_to(ROOT)} imports {', '.join(sorted(behind))}"


def test_every_part_has_its_place():
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert parts - {"__init__"} == set(FLOOR)
    assert len([path for path in ROOT.iterdir() if path.name != "__pycache__"]) <= 18


def test_only_public_names_of_lazyllm_are_imported():
    files = [path for folder in (ROOT, ROOT.parent / "scripts") for path in folder.rglob("*.py")]
    found = {name: path for path in files for name in imports(path, "lazyllm")}
    assert {"LazyLLMError", "Stats"} <= found.keys()
    assert not {name: path for name, path in found.items() if name not in lazyllm.__all__}
