"""Calls of the compiled handlers under the matrix product, for their tests."""

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
