"""Calls of the compiled handlers under the matrix product, for their tests."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxmd import _ffi

PLATFORMS = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]


def call(platform, name, out, *args, aliases=None, **attrs):
    """One handler under jit on one platform; results as numpy arrays."""
    _ffi.register()
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in out]
    device = jax.devices(platform)[0]
    attrs = {key: np.int64(value) for key, value in attrs.items()}
    function = jax.jit(lambda *x: jax.ffi.ffi_call(name, types, input_output_aliases=aliases)(*x, **attrs))
    return [np.asarray(r) for r in function(*(jax.device_put(np.ascontiguousarray(x), device) for x in args))]


def product_axes(a, b):
    """The shape of a·b."""
    return (*a[0].shape[:-1], b[0].shape[-1])


def assert_same_output_on_every_isa(script):
    """A script prints the same on every instruction set; one that the machine lacks falls back to a lower one."""
    printed = set()
    features = _ffi.cpu_features()
    isas = ["portable", "avx2", "avx512"]
    isas += ["vnni"] * features["avx512_vnni"] + ["amx"] * features["amx_int8"]
    for isa in isas:
        environment = {**os.environ, "JAXMD_CPU_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", script],
            env=environment,
            cwd=os.path.dirname(__file__),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout.strip())
    assert len(printed) == 1
