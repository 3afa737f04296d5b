"""What the installed package is made of, and what importing it does and does not do."""

import importlib.machinery
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import jaxlib
import pytest

import jaxmd
from jaxmd import _cpu

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs `code` in a fresh process that imports the same jaxmd as this one."""
    path = os.pathsep.join([str(Path(jaxmd.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    env = clean | {"PYTHONPATH": path} | environment
    return subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=False)


def test_runtime_dependencies():
    names = {re.match(r"[\w-]+", line)[0] for line in PYPROJECT["project"]["dependencies"]}
    assert names == {"jax", "jaxlib", "numpy"}
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"
    assert {"test", "plot", "cuda13", "dev"} <= set(PYPROJECT["project"]["optional-dependencies"])


def test_headers_are_those_of_the_oldest_jaxlib():
    """XLA's headers run on newer runtimes, not on older ones."""
    oldest = next(line for line in PYPROJECT["project"]["dependencies"] if line.startswith("jaxlib"))
    assert oldest.replace(">=", "==") in PYPROJECT["build-system"]["requires"]


def test_compiled_module_matches_the_interpreter():
    stable = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
    suffix = ".abi3.so" if stable else importlib.machinery.EXTENSION_SUFFIXES[0]
    assert _cpu.__file__.endswith(suffix)
    assert (Path(jaxmd.__file__).parent / "py.typed").exists()


def test_compiled_tables_hold_only_our_targets():
    assert _cpu.handlers()
    assert all(name.startswith("jaxmd_") for name in _cpu.handlers())


def test_cuda_module_is_harmless_without_a_gpu():
    cuda = pytest.importorskip("jaxmd._cuda", reason="built without CUDA", exc_type=ImportError)
    assert all(name.startswith("jaxmd_") for name in cuda.handlers())
    assert set(_cpu.targets()) == set(_cpu.handlers()) | set(cuda.handlers())
    assert {"sm_80", "sm_90a"} <= set(cuda.architectures().split())


def test_import_touches_no_device_and_no_setting():
    """No backend can start under a platform that does not exist; the import must not want one."""
    code = """
import sys, jax
settings, before = dict(jax.config.values), set(sys.modules)
import jaxmd
assert dict(jax.config.values) == settings
new = set(sys.modules) - before
optional = {"mpmath", "flint", "matplotlib", "scipy", "pytest", "jaxmd._cuda"}
assert not new & optional, new & optional
try:
    jax.devices()
except RuntimeError:
    print("no device")
"""
    done = run_python(code, JAX_PLATFORMS="nonexistent")
    assert done.stdout == "no device\n", done.stderr


def test_x64_off_is_an_error_of_the_first_use_only():
    code = """
import jax, jaxmd
try:
    jaxmd.dd("0.1")
except TypeError as error:
    print(error)
with jax.enable_x64(True):
    print(jaxmd.dd("0.1").limbs[0].dtype)
"""
    done = run_python(code)
    first, second = done.stdout.splitlines()
    assert "jax_enable_x64" in first
    assert second == "float64", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["clang++", "aarch64-linux-gnu-g++", "g++"])
def test_sources_compile_elsewhere(compiler):
    """Every CPU source, as portable code: no compiler extension and no instruction set is taken for granted."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    include = Path(jaxlib.__file__).parent / "include"
    flags = ["-std=c++17", "-ffp-contract=off", "-fsyntax-only", "-Wall", "-Wextra", "-isystem", str(include)]
    for pattern, define in (("*_cpu.cc", []), ("*_simd.cc", ["-DJAXMD_ISA=portable"])):
        sources = sorted(map(str, (ROOT / "ffi").glob(pattern)))
        assert sources
        run = [compiler, *flags, *define, *sources]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
