"""Traces, outer and inner products and einsum of MultiDoubles, compared with rationals."""

from fractions import Fraction

import jax
import numpy as np
import oracles
import pytest
from multiple_doubles import exact, objects, value

import jaxmd


def test_trace():
    x = value("full", 3, (4, 5, 2))
    e, size = exact(x), abs(exact(x))
    oracles.assert_within(jaxmd.trace(x), objects(np.trace(e)), 3, 4, scale=objects(np.trace(size)))
    wanted, scale = np.trace(e, 1, 2, 1), np.trace(size, 1, 2, 1)
    oracles.assert_within(jaxmd.trace(x, 1, 2, 1), objects(wanted), 3, 4, scale=objects(scale))


def test_outer():
    x, y = value("full", 3, (4,)), value("spread", 2, (2, 3), 1)
    oracles.assert_within(jaxmd.outer(x, y), np.multiply.outer(exact(x), exact(y).ravel()), 3, 2)


@pytest.mark.parametrize(
    ("a", "b"), [((), ()), ((3,), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)),
                 ((5, 2, 3), (3,)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((6, 2, 3), (5, 3, 4)), ((2, 0), (0, 3))]
)  # fmt: skip
def test_dot(a, b):
    x, y = value("full", 3, a), value("full", 2, b, 1)
    wanted, scale = (objects(np.dot(u, v)) for u, v in ((exact(x), exact(y)), (abs(exact(x)), abs(exact(y)))))
    if wanted.size and 0 in a:
        wanted = scale = np.zeros(wanted.shape, int).astype(object)
    oracles.assert_within(jaxmd.dot(x, y), wanted, 3, 2 + 3, scale=scale)
    with pytest.raises(ValueError, match=r"jaxmd\.dot: a has shape \(2,\) and b has shape \(3,\)"):
        jaxmd.dot(jaxmd.ones(2), jaxmd.ones(3))


SUBSCRIPTS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("i,i", (3,), (3,)),
    ("i,i->i", (3,), (3,)),
    ("i,j->ji", (3,), (2,)),
    ("ij,ij->", (2, 3), (2, 3)),
    ("ij,ji->", (2, 3), (3, 2)),
    ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("bij,bjk->kbi", (2, 2, 3), (2, 3, 2)),
    ("ijk,jl->ilk", (2, 3, 2), (3, 4)),
    ("ijkl,jlm->ikm", (2, 3, 2, 2), (3, 2, 2)),
    ("ii,ij->j", (3, 3), (3, 2)),
    ("ij,k->k", (2, 3), (4,)),
    ("ij,jk->i", (2, 3), (3, 4)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (4, 3, 2)),
    ("...ij,j", (2, 2, 3), (3,)),
    ("i...,i...->...", (3, 2), (3, 2)),
    ("i...,...j->j...i", (3, 2), (2, 4)),
    ("...i,...i->...", (1, 3), (4, 3)),
    (" i j , j -> i ", (2, 3), (3,)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    (",i->i", (), (3,)),
    ("ii", (3, 3), None),
    ("ii->i", (3, 3), None),
    ("ij->ji", (2, 3), None),
    ("ij->", (2, 3), None),
    ("...i->...", (2, 2, 3), None),
    ("iij->ji", (2, 2, 3), None),
    ("ba", (2, 3), None),
]


@pytest.mark.parametrize(("subscripts", "a", "b"), SUBSCRIPTS)
def test_einsum(subscripts, a, b):
    shapes = [a] if b is None else [a, b]
    values = [value("full", 3 - i, shape, i) for i, shape in enumerate(shapes)]
    wanted = einsum_of_integers(subscripts, *(exact(v) for v in values))
    scale = einsum_of_integers(subscripts, *(abs(exact(v)) for v in values))
    f = lambda *v: jaxmd.einsum(subscripts, *v)
    oracles.assert_within(jax.jit(f)(*values), wanted, 3, 64, scale=scale, label=subscripts)


def einsum_of_integers(subscripts, *operands):
    """numpy's einsum on exact integers: Fractions over one power of two for each operand."""
    integers, exponent = [], 0
    for x in operands:
        x = objects(x)
        shift = max((v.denominator.bit_length() - 1 for v in x.ravel()), default=0)
        integers.append(np.vectorize(lambda v, s=shift: int(v * 2**s), otypes=[object])(x) if x.size else x)
        exponent += shift
    result = objects(np.einsum(subscripts, *integers))
    return objects(np.vectorize(lambda v: Fraction(int(v), 2**exponent), otypes=[object])(result))


def test_einsum_errors():
    x = jaxmd.ones((2, 3))
    for subscripts, operands, match in [
        ("ij,jk", (x,), "1 operands came; 'ij,jk' wants 2"),
        ("ij,jk", (x, x), "'j' of 'ij,jk' has lengths 3 and 2"),
        ("i,j", (x, x), r"'i' of 'i,j' for shape \(2, 3\)"),
        ("ij->ik", (x,), "result 'ik' of 'ij->ik'"),
        ("ij->ii", (x,), "result 'ii'"),
        ("i1,jk", (x, x), "one letter an axis"),
        ("ii->i", (x,), "'i' of 'ii->i' has lengths 2 and 3"),
    ]:
        with pytest.raises(ValueError, match=match):
            jaxmd.einsum(subscripts, *operands)
    with pytest.raises(NotImplementedError, match="3 operands came; one or two"):
        jaxmd.einsum("ij,jk,kl", x, x, x)


def test_einsum_and_its_derivative_keep_all_digits():
    x, y = value("full", 4, (2, 3)), value("full", 4, (3, 2), 1)
    _, pull = jax.vjp(lambda a, b: jaxmd.einsum("ij,jk->ki", a, b), x, y)
    dx, dy = pull(jaxmd.ones((2, 2), 4))
    sums = exact(y).sum(axis=1)
    oracles.assert_within(dx, objects([sums, sums]), 4, 8, scale=objects([abs(exact(y)).sum(axis=1)] * 2))
    sums = exact(x).sum(axis=0)
    oracles.assert_within(dy, objects([sums, sums]).T, 4, 8, scale=objects([abs(exact(x)).sum(axis=0)] * 2).T)
