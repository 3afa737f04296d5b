"""`python -m jaxmd`: what is installed, whether it computes correctly, and what to do if not. Exit status 1 if not.

Changes no setting: the self-test runs inside `with jax.enable_x64(True):`.
"""

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable

import jax
import numpy as np

from jaxmd import _ffi, _selftest

OLDEST_JAX = (0, 10, 2)
REINSTALL = "reinstall with `pip install --force-reinstall --no-deps .` in a clone of jaxmd"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something broken, and what its owner can do about it."""

    what: str
    fix: str


def say(topic: str, text: str) -> None:
    print(f"{topic:<12}{text}", flush=True)


def versions() -> list[Problem]:
    say("jaxmd", importlib.metadata.version("jaxmd") if _installed("jaxmd") else "not installed, run from its sources")
    say("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    say("jax", f"{jax.__version__}, jaxlib {importlib.metadata.version('jaxlib')}, numpy {np.__version__}")
    found = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
    if found < OLDEST_JAX:
        return [Problem(f"jax {jax.__version__} is older than 0.10.2", 'pip install "jax>=0.10.2"')]
    return []


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def settings() -> list[Problem]:
    """The x64 state, and flags that would let a compiler rewrite floating-point arithmetic."""
    on = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    advice = 'call jax.config.update("jax_enable_x64", True) or work inside `with jax.enable_x64(True):`'
    say("x64", "on" if on else f"off; before using multiple doubles {advice}")
    flags = os.environ.get("XLA_FLAGS", "")
    say("XLA_FLAGS", flags or "none")
    problems = [
        Problem(f"XLA_FLAGS holds {flag}, which breaks error-free transformations", f"take {flag} out of XLA_FLAGS")
        for flag in harmful(flags)
    ]
    if np.float64(5e-324) * np.ones(1) == 0:
        what = "this process flushes subnormal numbers to zero; some library built with -ffast-math switched that on"
        problems.append(Problem(what, "find the library by importing fewer of them, and replace it"))
    return problems


def harmful(flags: str) -> list[str]:
    """The flags that turn fast math on: `--xla_cpu_enable_fast_math` and its kin, unless set to false."""
    state = {}
    for flag in flags.split():
        name, _, value = flag.partition("=")
        state[name] = (flag, value.lower() not in ("false", "0"))  # the last one wins
    return [
        flag for name, (flag, on) in state.items() if re.fullmatch(r"--xla_(cpu|gpu)_enable_fast_math", name) and on
    ]


def handlers() -> list[Problem]:
    """The compiled modules: what they hold, and which of their code runs here."""
    try:
        targets = _ffi.register()
    except ImportError as error:
        say("handlers", "none")
        return [Problem(str(error), REINSTALL)]
    features = _ffi.cpu_features()
    present = ", ".join(name for name, has in features.items() if has is True) or "no extension"
    say("cpu", f"{len(targets['cpu'])} handlers, instruction set {features['isa']} (the processor has {present})")
    wanted = os.environ.get("JAXMD_CPU_ISA")
    problems = []
    if wanted is not None and wanted not in _ffi.CPU_ISAS:
        said = f"JAXMD_CPU_ISA is {wanted!r}, which means nothing"
        problems.append(Problem(said, f"one of {', '.join(_ffi.CPU_ISAS)}"))
    if not _ffi.has_cuda():
        say("CUDA", "module not built (needed on a GPU only)")
        return problems
    say("CUDA", f"{len(targets['CUDA'])} handlers for {', '.join(_ffi.cuda_architectures())}")
    missing = sorted(targets["cpu"] - targets["CUDA"] - _ffi.CPU_ONLY)
    if missing:
        problems.append(Problem(f"the CUDA module lacks {', '.join(missing)}", REINSTALL))
    return problems


def devices() -> tuple[list[jax.Device], list[Problem]]:
    """One device of every backend that jaxmd has kernels for."""
    try:
        jax.devices()
    except RuntimeError as error:
        return [], [Problem(f"JAX starts no backend: {error}", "set JAX_PLATFORMS=cpu, or mend the plugin it names")]
    chosen, problems = [], []
    for name in ("cpu", "gpu"):
        try:
            found = jax.local_devices(backend=name)
        except RuntimeError:
            continue
        say("backend", f"{name}: {len(found)} × {found[0].device_kind}")
        chosen.append(found[0])
    if jax.default_backend() not in ("cpu", "gpu"):
        say("backend", f"{jax.default_backend()}: jaxmd has no kernels for it and needs cpu or gpu")
    gpu = [device for device in chosen if device.platform == "gpu"]
    if gpu and not _ffi.has_cuda():
        fix = "reinstall with `JAXMD_CUDA=on pip install .` in a clone of jaxmd"
        problems.append(Problem("JAX finds a GPU, but jaxmd was built without its CUDA module", fix))
        chosen.remove(gpu[0])
    elif gpu and float(getattr(gpu[0], "compute_capability", 8.0)) < 8:
        what = (
            f"{gpu[0].device_kind} has compute capability {gpu[0].compute_capability}; kernels need 8.0 (A100) or later"
        )
        problems.append(Problem(what, "set JAX_PLATFORMS=cpu"))
        chosen.remove(gpu[0])
    elif not gpu and _gpu_in_machine():
        say(
            "note",
            'this machine has an NVIDIA GPU that JAX does not use; `pip install "jax[cuda13]"` brings its plugin',
        )
    return chosen, problems


def _gpu_in_machine() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False, timeout=20).returncode == 0


def self_test(device: jax.Device) -> list[Problem]:
    """Runs the self-test and prints, for each operation, the largest error in units of its bound."""
    start = time.perf_counter()
    print(f"\nself-test on {device.platform} (error in units of the documented bound; 1 is the limit)")
    problems = []
    try:
        with jax.enable_x64(True):
            for line in _selftest.run(device):
                print(f"  {line.name:<26} limbs {line.limbs:<3} {line.error:8.2g}  {'ok' if line.passed else 'WRONG'}")
                if not line.passed:
                    what = f"{line.name} with {line.limbs} limbs is wrong on {device.platform}"
                    problems.append(Problem(what, f"remove XLA_FLAGS; if it stays, {REINSTALL}, then report it"))
    except Exception as error:  # a doctor reports what it meets, whatever it is
        text = str(error).strip().splitlines() or [""]
        what = f"the self-test on {device.platform} stopped with {type(error).__name__}: {text[0]}"
        problems.append(Problem(what, f"{REINSTALL}, then report it"))
    print(f"  {time.perf_counter() - start:.1f} s")
    return problems


def report(problems: Iterable[Problem]) -> int:
    """Prints the verdict; the exit status."""
    problems = list(problems)
    if not problems:
        print("\neverything works")
    for problem in problems:
        print(f"\nproblem: {problem.what}\n    fix: {problem.fix}")
    return bool(problems)


def main() -> int:
    argparse.ArgumentParser(prog="python -m jaxmd", description=__doc__).parse_args()
    problems = [*versions(), *settings()]
    broken = handlers()
    problems += broken
    found, unusable = devices()
    problems += unusable
    if not any(problem.fix == REINSTALL for problem in broken):
        for device in found:
            problems += self_test(device)
    return report(problems)


if __name__ == "__main__":
    sys.exit(main())
