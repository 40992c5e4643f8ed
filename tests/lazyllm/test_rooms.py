"""The packages of `lazyllm` are layered: each imports only itself and earlier ones, and `core` needs torch alone."""

import ast
import sys
from pathlib import Path

import pytest

import lazyllm

ROOT = Path(lazyllm.__file__).parent
PACKAGES = ("core", "rankings", "hf", "extras")


def imported(path):
    """Return the modules that a file imports anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    assert all(node.level == 0 for node in nodes if isinstance(node, ast.ImportFrom)), "write the full name"
    names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_earlier_ones(package):
    earlier = PACKAGES[: PACKAGES.index(package) + 1]
    files = list((ROOT / package).glob("*.py"))
    assert files
    for path in files:
        modules = imported(path)
        assert {module.split(".")[1] for module in modules if module.startswith("lazyllm.")} <= set(earlier), path
        if package == "core":
            assert {module.split(".")[0] for module in modules} <= {"torch", "lazyllm", *sys.stdlib_module_names}, path


def test_the_reference_imports_nothing_of_the_library():
    assert not [module for module in imported(ROOT / "reference.py") if module.startswith("lazyllm")]
