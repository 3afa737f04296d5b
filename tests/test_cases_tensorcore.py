"""Problems of real users with exact answers (tests/cases/*.json name their sources): tensor-core arithmetic."""

from fractions import Fraction

import inputs
import pytest
from tensorcore_cases import run_pairs

from jaxmd import tensorcore
from jaxmd.tensorcore import FORMATS, bits_of, explain, spec, value_of

CASE = inputs.case("T01")
UNITS = {
    "V100 (0 extra bits)": ["volta mma.m8n8k4.f32.f16.f16.f32"],
    "T4/A100 (1 extra bit)": ["turing mma.m16n8k8.f32.f16.f16.f32", "ampere mma.m16n8k16.f32.f16.f16.f32"],
    "2 extra bits (reported for H100)": ["hopper mma.m16n8k16.f32.f16.f16.f32", "hopper wgmma.k16.f32.f16.f16"],
}


def nearest(text, f):
    """The bits of the format's value that a decimal stands for: exact, or its shortest text."""
    exact = Fraction(text)
    try:
        return bits_of(exact, f)
    except ValueError:
        bits = int(f.dtype(float(text)).view(f.word))
        assert abs(value_of(bits, f) - exact) <= abs(exact) / 10**8
        return bits


@pytest.mark.parametrize("unit, name", [(unit, name) for unit, names in UNITS.items() for name in names])
def test_t01_single_block_products(unit, name):
    s = spec(*name.split())
    rows = CASE["inputs"]["rows"]
    value = lambda text, f: value_of(nearest(text, f), f)
    half, single = FORMATS["f16"], FORMATS["f32"]
    cases = [([(value(x, half), value(y, half)) for x, y in zip(r["a"], r["b"])], value(r["c"], single)) for r in rows]
    for r, (pairs, c), bits in zip(rows, cases, run_pairs(s, cases).tolist()):
        # The case's third column is a unit of two extra bits whose length is that of Hopper.
        assert bits == nearest(r["model"][unit], single), (r["name"], value_of(bits, single))
        assert explain([p[0] for p in pairs], [p[1] for p in pairs], c, s).bits == bits
        published = r["published_expectation"]
        if isinstance(published, dict) and (unit[:4] == "V100" or unit[:2] == "T4"):
            assert bits == nearest(published["V100" if unit[:4] == "V100" else "T4/A100"], single), r["name"]


def test_t01_names_every_unit():
    assert all(set(r["model"]) == set(UNITS) for r in CASE["inputs"]["rows"])
    assert tensorcore.spec("volta", "mma.m8n8k4.f32.f16.f16.f32").fraction_bits == 23
