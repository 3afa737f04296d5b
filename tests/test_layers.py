"""The shape of the package: a file imports only from rows below its own, or from files to its left in its row."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "jaxmd"

LAYERS = [
    ["_ffi", "_rational", "_decimal"],
    [
        *["_primitive", "_linear", "_arith", "_slices", "_residues", "_residue_tables", "_magnitudes"],
        *["_bits", "_specs", "_fused", "_fma", "_steps", "_chain"],
        *["_explain_text", "_explain_picture", "_explain", "_certificate", "_issue", "_verify", "_probe", "tensorcore"],
    ],
    [
        "_choice",
        "_product",
        "_residue_steps",
        "_panels",
        "_residue_product",
        "_single_steps",
        "_engines",
        "_matmul",
        "_prepared",
        "_single",
    ],
    [
        *[
            "_operands",
            "_order",
            "_elementwise",
            "_prefix",
            "_indexing",
            "_format",
            "_export",
            "_products",
            "_array",
            "_convert",
        ],
        *["_layout", "_functions", "_finfo", "_reductions", "_contractions", "random"],
    ],
    ["_autodiff"],
    ["__init__", "_selftest", "__main__"],
]
COMPILED = {"_cpu", "_cuda"}
POSITION = {name: (row, column) for row, names in enumerate(LAYERS) for column, name in enumerate(names)}
FILES = sorted(PACKAGE.glob("**/*.py"))


def _name(path: Path) -> str:
    """Of a module; a package inside ours has the name of its folder."""
    return path.parent.name if path.stem == "__init__" and path.parent != PACKAGE else path.stem


def _imported(tree: ast.AST) -> set[str]:
    """Modules of the package that the tree imports, at any depth, the type checker's own imports aside."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("jaxmd.")}
            names |= {"__init__" for alias in node.names if alias.name == "jaxmd"}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            match = re.fullmatch(r"(?:jaxmd|\.)\.?(\w*)", module)
            if match and match[1]:
                names.add(match[1])
            elif match:
                names |= {alias.name if alias.name in set(POSITION) | COMPILED else "__init__" for alias in node.names}
    return names


def test_every_file_has_a_layer():
    assert {_name(path) for path in FILES} <= set(POSITION)


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_point_down(path):
    imported = _imported(ast.parse(path.read_text()))
    row, column = POSITION[_name(path)]
    if _name(path) != "_ffi":
        assert not imported & COMPILED, "only _ffi loads the compiled modules"
    for name in imported - COMPILED:
        assert POSITION[name] < (row, column), f"{_name(path)} imports {name}, which is not below it or to its left"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("**/__init__.py")), ids=_name)
def test_public_names_only(path):
    """`__init__.py` holds imports of the form `X as X`, and nothing that runs."""
    for node in ast.parse(path.read_text()).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        dunder = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        dunder = dunder and node.targets[0].id.startswith("__")
        imports = isinstance(node, (ast.Import, ast.ImportFrom))
        assert docstring or dunder or imports, ast.dump(node)
        if imports:
            assert all(alias.asname == alias.name for alias in node.names), ast.unparse(node)


def test_nothing_forbidden_exists():
    sources = [p for folder in ("jaxmd", "tests", "examples") for p in (ROOT / folder).glob("**/*.py")]
    assert not [p for p in sources if p.stem in {"utils", "util", "common", "helpers", "misc"}]
    private = "jax." + "_src"
    assert not [p for p in sources if private in p.read_text()]
    settings = re.compile(r"config\.update\(")
    assert not [p for p in FILES if _runs_on_import(p, settings)]


def _runs_on_import(path: Path, pattern: re.Pattern) -> bool:
    """Whether a statement outside functions and classes matches the pattern."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in ast.parse(path.read_text()).body if not isinstance(node, defined)]
    return any(pattern.search(ast.unparse(node)) for node in top)
