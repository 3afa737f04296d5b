"""The GPU's own instructions against the model, bit for bit, on random bits (examples/bench/tensorcore.py has more)."""

import numpy as np
import pytest
from tensorcore_cases import random_bits

from jaxmd import tensorcore

pytestmark = pytest.mark.gpu

NAMES = [
    *("mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f16.f16.f16.f16", "mma.m16n8k16.f32.bf16.bf16.f32"),
    *("mma.m16n8k8.f32.tf32.tf32.f32", "mma.m16n8k8.f64.f64.f64.f64", "mma.m16n8k32.f32.e4m3.e5m2.f32"),
    *("wgmma.k16.f32.f16.f16", "wgmma.k16.f32.bf16.bf16", "wgmma.k8.f32.tf32.tf32", "wgmma.k32.f32.e4m3.e4m3"),
    *("wgmma.k32.f32.e5m2.e5m2", "wgmma.k32.f16.e4m3.e5m2", "wgmma.k32.s32.u8.s8.satfinite"),
    *("mma.m16n8k32.s32.s8.s8.s32", "mma.m16n8k16.s32.s8.u8.s32.satfinite", "wgmma.k32.s32.s8.s8"),
]
OUTPUTS = 60_000


def options(spec):
    if not spec.instruction.startswith("wgmma"):
        return [{}]
    signed = [{"negate_a": True}] if spec.operation == "fused" else []
    return [{}, {"a_from": "registers"}, {"accumulate": False}, *signed]


@pytest.mark.parametrize("name", NAMES)
def test_every_bit(name):
    spec = tensorcore.spec("hopper", name)
    for kind in ("bits",) if spec.operation == "integer" else tensorcore.KINDS:
        for chosen in options(spec):
            found = tensorcore.verify(spec, kind, outputs=OUTPUTS, seed=7, **chosen)
            assert found.outputs >= OUTPUTS
            assert found.mismatches == 0, f"{name}, {kind}, {chosen}: {found}"


def test_errors():
    spec = tensorcore.spec("hopper", "mma.m16n8k16.f32.f16.f16.f32")
    a, b, c = (random_bits(f, shape, 1) for f, shape in ((spec.a, (16, 16)), (spec.b, (16, 8)), (spec.c, (16, 8))))
    with pytest.raises(ValueError, match="options of wgmma"):
        tensorcore.issue(a, b, c, spec, accumulate=False)
    with pytest.raises(ValueError, match=r"wanted \[..., 16, 16\]"):
        tensorcore.issue(a[:8], b, c, spec)
    with pytest.raises(NotImplementedError, match="no kernel issues"):
        tensorcore.issue(a, b, c, tensorcore.spec("blackwell", "tcgen05.k16.f32.f16.f16"))
    assert np.asarray(tensorcore.issue(a, b, c, spec)).dtype == np.uint32
