"""`python -m jaxmd`: finds nothing wrong here, and finds what is put wrong on purpose, with its fix."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jaxmd
from jaxmd import __main__ as doctor
from jaxmd import _selftest


def run_doctor(**environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(Path(jaxmd.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_ENABLE", "XLA_"))}
    env = clean | {"PYTHONPATH": path} | environment
    return subprocess.run([sys.executable, "-P", "-m", "jaxmd"], env=env, capture_output=True, text=True, check=False)


def test_healthy_installation():
    done = run_doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("everything works\n")
    for word in ("jaxmd", "jax ", "backend", "cpu: 1 ×", "handlers", "x64         off", "XLA_FLAGS   none", "CUDA"):
        assert word in done.stdout, word
    for engine in _selftest.ENGINES:
        assert f'engine "{engine}"' in done.stdout
    assert "WRONG" not in done.stdout


def test_fast_math_is_a_problem_with_a_fix():
    done = run_doctor(XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    assert done.returncode == 1
    assert "problem: XLA_FLAGS holds --xla_cpu_enable_fast_math=true" in done.stdout
    assert "fix: take --xla_cpu_enable_fast_math=true out of XLA_FLAGS" in done.stdout


def test_no_backend_is_a_problem_with_a_fix():
    done = run_doctor(JAX_PLATFORMS="nonexistent")
    assert done.returncode == 1
    assert "problem: JAX starts no backend" in done.stdout
    assert "JAX_PLATFORMS=cpu" in done.stdout


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", []),
        ("--xla_cpu_enable_fast_math", ["--xla_cpu_enable_fast_math"]),
        ("--xla_cpu_enable_fast_math=false --xla_dump_to=/x", []),
        ("--xla_cpu_enable_fast_math=true --xla_cpu_enable_fast_math=false", []),
        ("--xla_cpu_enable_fast_math=0 --xla_cpu_enable_fast_math=1", ["--xla_cpu_enable_fast_math=1"]),
        ("--xla_cpu_enable_fast_min_max=true", []),
    ],
)
def test_harmful_flags(flags, found):
    assert doctor.harmful(flags) == found


@pytest.mark.parametrize("name", ["add", "mul", "div", "sqrt", "two_sum", "two_prod", "matmul"])
def test_a_wrong_operation_is_found(name, monkeypatch, capsys):
    """A relative error of 2^(12 − 53 L) in one entry is enough to be seen."""
    right = getattr(_selftest, name)

    def wrong(*args, **kwargs):
        result = right(*args, **kwargs)
        limbs = result.limbs if name == "matmul" else result
        error = limbs[0] * 0
        error = error.at[(0,) * error.ndim].set(1) * limbs[0] * 2.0 ** -(53 * len(limbs) - 12)
        limbs = (*limbs[:-1], limbs[-1] + error)
        return jaxmd.MultiDouble(limbs) if name == "matmul" else limbs

    wrong.__name__ = name
    monkeypatch.setattr(_selftest, name, wrong)
    monkeypatch.setattr(_selftest, "ENGINES", ("direct",))
    problems = doctor.self_test(jax.devices()[0])
    assert any(problem.what.startswith(name) for problem in problems)
    assert "WRONG" in capsys.readouterr().out
    assert doctor.report(problems) == 1
    assert "fix:" in capsys.readouterr().out


def test_a_crash_is_reported(monkeypatch):
    def crash(*args, **kwargs):
        raise ValueError("no such luck")

    monkeypatch.setattr(_selftest, "two_sum", crash)
    (problem,) = doctor.self_test(jax.devices()[0])
    assert "ValueError: no such luck" in problem.what


def test_missing_modules(monkeypatch):
    def missing():
        raise ImportError("jaxmd: the compiled module jaxmd._cpu is missing; `pip install .` builds it.")

    monkeypatch.setattr(doctor._ffi, "register", missing)
    (problem,) = doctor.handlers()
    assert "jaxmd._cpu is missing" in problem.what
    assert "reinstall" in problem.fix


def test_changes_no_setting(monkeypatch):
    monkeypatch.setattr(_selftest, "ENGINES", ("direct",))
    before = dict(jax.config.values)
    doctor.self_test(jax.devices()[0])
    assert dict(jax.config.values) == before


def test_an_unknown_instruction_set_is_named() -> None:
    run = run_doctor(JAXMD_CPU_ISA="AVX2")
    assert run.returncode != 0
    assert "JAXMD_CPU_ISA is 'AVX2'" in run.stdout and "portable, avx2, avx512, vnni, amx" in run.stdout
