"""The instruction itself: one mma.sync or wgmma for each case on the GPU at hand, to hold the model against."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _ffi
from ._bits import Format, as_array, require_x64
from ._specs import Spec, check_spec

COLUMNS = 8  # n of every instruction that is issued


def rows(spec: Spec) -> int:
    """m of the instruction: 64 for wgmma, 8 for m8n8k4, else 16."""
    check_spec("jaxmd.tensorcore.rows", spec)
    if spec.instruction.startswith("wgmma"):
        return 64
    return 8 if ".m8n8" in spec.instruction else 16


def issue(
    a: Any,
    b: Any,
    c: Any,
    spec: Spec,
    *,
    a_from: str | None = None,
    accumulate: bool = True,
    negate_a: bool = False,
) -> jax.Array:
    """Runs one tensor-core instruction for each case on the GPU; `mma` predicts its bits.

    Args:
        a, b: bits [..., m, k] and [..., k, 8] of `spec.a` and `spec.b`; m as the instruction has it (`rows`).
        c: bits [..., m, 8] of `spec.c`.
        spec: names the instruction; it need not be of the GPU's own architecture, only exist there.
        a_from: "shared" or "registers", where wgmma finds A (default "shared"); mma.sync has it in registers.
        accumulate: wgmma's scale-d; False ignores c.
        negate_a: wgmma's imm-scale-a = -1 (not for integers).

    Returns: bits [..., m, 8] of `spec.d`.

    Raises: NotImplementedError without a GPU, a CUDA module or such an instruction in it; TypeError and ValueError as
        `mma`, and for options that the instruction does not have.
    """
    who = "jaxmd.tensorcore.issue"
    check_spec(who, spec)
    wgmma = spec.instruction.startswith("wgmma")
    a_from = a_from or ("shared" if wgmma else "registers")
    if a_from not in ("shared", "registers"):
        raise ValueError(f"{who}: a_from = {a_from!r} came; wanted 'shared' or 'registers'.")
    if not wgmma and (a_from == "shared" or not accumulate or negate_a):
        raise ValueError(f"{who}: options of wgmma came for {spec.instruction}.")
    if negate_a and spec.operation == "integer":
        raise ValueError(f"{who}: negate_a came for {spec.instruction}, whose integers have no sign to choose.")
    if not _has_kernel(spec):
        raise NotImplementedError(f"{who}: no kernel issues {spec.instruction}.")
    x, y, z = (_unsigned(v, f, who, name) for v, f, name in ((a, spec.a, "a"), (b, spec.b, "b"), (c, spec.c, "c")))
    m, lead = rows(spec), x.shape[:-2]
    if x.shape != (*lead, m, spec.k) or y.shape != (*lead, spec.k, COLUMNS) or z.shape != (*lead, m, COLUMNS):
        raise ValueError(
            f"{who}: a, b and c have shapes {x.shape}, {y.shape} and {z.shape}; wanted [..., {m}, {spec.k}], "
            f"[..., {spec.k}, {COLUMNS}] and [..., {m}, {COLUMNS}]."
        )
    if jax.default_backend() != "gpu" or not _ffi.has_cuda():
        raise NotImplementedError(f"{who}: needs an NVIDIA GPU and the CUDA module of jaxmd.")
    return _issue(x, y, z, spec, a_from == "registers", accumulate, negate_a)


@functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _issue(
    a: jax.Array, b: jax.Array, c: jax.Array, spec: Spec, registers: bool, accumulate: bool, negate: bool
) -> jax.Array:
    return _ffi.call(
        "jaxmd_tensorcore_issue",
        [jax.ShapeDtypeStruct(c.shape, spec.d.word)],
        a,
        jnp.swapaxes(b, -1, -2),
        c,
        instruction=spec.instruction,
        registers=int(registers),
        accumulate=int(accumulate),
        negate=int(negate),
    )[0]


def _has_kernel(spec: Spec) -> bool:
    """Ampere's and Hopper's instructions."""
    older = ("mma.m8n8k4.f32", "mma.m8n8k4.f16", "mma.m8n8k16")
    narrow = {"e3m2", "e2m3", "e2m1"} & {spec.a.name, spec.b.name}
    return not narrow and not spec.instruction.startswith(("tcgen05", *older))


def _unsigned(x: Any, f: Format, who: str, name: str) -> jax.Array:
    require_x64(f, who)
    x = as_array(x, who, name)
    if x.dtype != f.word:
        raise TypeError(f"{who}: {name} has type {x.dtype}; wanted bits of {f}, {np.dtype(f.word).name}.")
    return x
