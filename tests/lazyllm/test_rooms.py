"""The rooms of `lazyllm` stand in an order, each imports only those before it, and the method needs torch alone."""

import ast
import sys
from pathlib import Path

import pytest

import lazyllm

ROOT = Path(lazyllm.__file__).parent
ROOMS = ("core", "rankings", "hf", "extras")
FILES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}


def imported(nodes):
    """The modules that import statements name."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write the whole name"
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def of_room(room):
    """Each module of a room, with those that it imports anywhere in it."""
    actual = {name: path for name, path in FILES.items() if name.startswith(f"lazyllm.{room}.")}
    assert actual
    for name, path in actual.items():
        yield name, set(imported(ast.walk(ast.parse(path.read_text()))))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_before_it(room):
    known = ROOMS[: ROOMS.index(room) + 1]
    for name, modules in of_room(room):
        ours = {module.split(".")[1] for module in modules if module.startswith("lazyllm.")}
        assert ours <= set(known), f"{name} imports {sorted(ours)}"


def test_the_method_imports_torch_alone():
    known = {"torch", "lazyllm", *sys.stdlib_module_names}
    for name, modules in of_room("core"):
        others = {root for module in modules if (root := module.split(".")[0]) not in known}
        # The page of a generation is drawn by what benchmarks it.
        assert others <= ({"lazybench"} if name == "lazyllm.core.stats" else set()), f"{name} imports {others}"


def test_the_reference_imports_no_room():
    modules = imported(ast.walk(ast.parse((ROOT / "reference.py").read_text())))
    assert not [module for module in modules if module.startswith("lazyllm")]
