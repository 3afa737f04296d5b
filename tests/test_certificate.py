"""The certificate's handlers against its definition in jnp, for limbs that are settled and limbs that are not."""

import inputs
import jax
import numpy as np
import pytest
from handler_calls import PLATFORMS

from jaxmd import _magnitudes, _product, _slices


def spoiled(x):
    """x with inf, subnormal numbers, zeros and limbs that are not settled in it."""
    flat = [v.reshape(-1) for v in x]
    if flat[0].size > 100:
        flat[0][3], flat[0][40], flat[-1][77] = np.inf, 2.0**-1060, 1e300
        flat[0][90:94] = 0.0
        for v in flat:
            v[:: x[0].shape[-1]] = 0.0
    return x


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("limbs", [1, 2, 3, 8])
@pytest.mark.parametrize("terms", [_magnitudes.TERMS, _magnitudes.MOST_TERMS])
@pytest.mark.parametrize(
    "batch, m, k, n",
    [
        ((), 130, 600, 70),
        ((3,), 5, 33, 200),
        ((2, 2), 1, 1, 1),
        ((), 64, 256, 64),
        ((), 0, 4, 3),
        pytest.param((), 3, 17000, 9, marks=pytest.mark.gpu),  # in slabs there
        pytest.param((300,), 2, 64, 30, marks=pytest.mark.gpu),  # 32 columns a block
    ],
)
def test_certificate(platform, limbs, batch, m, k, n, terms):
    """Grids; the least product of magnitudes, the bound that it reaches and the next; whether limbs are settled."""
    rng = inputs.generator("certificate", limbs, m, k, n)
    a, b = (tuple(inputs.full(rng, (*batch, *s), limbs, 0.0)) for s in ((m, k), (k, n)))

    @jax.jit
    def expected(a, b):
        row = _slices.shared_exponent(_slices.settled_exponents(a), -1)
        column = _slices.shared_exponent(_slices.settled_exponents(b), -2)
        x, y = _magnitudes.magnitudes(a, row, 0, terms), _magnitudes.magnitudes(b, column, 1, terms)
        return row, column, _magnitudes.least(x, y)

    run = jax.jit(_product.certificate, static_argnums=(2, 3, 4))
    device, name = jax.devices(platform)[0], {"gpu": "cuda"}.get(platform, platform)
    for x, y in ((a, b), (spoiled(a), spoiled(b))):
        row, column, least = expected(x, y)
        bounds = [int(least)] if 0 in (*batch, m, n) else [max(1, int(least)), int(least) + 1]
        for bound in bounds:
            got = run(*jax.device_put((x, y), device), terms, bound, name)
            np.testing.assert_array_equal(got[0], row)
            np.testing.assert_array_equal(got[1], column)
            assert bool(got[2]) == (int(least) >= bound)
            assert not np.any(got[3]) and got[3].shape == (*batch, k)
        settled = max(np.max(row, initial=0), np.max(column, initial=0)) < _slices.UNSETTLED
        assert bool(run(*jax.device_put((x, y), device), 0, 0, name)[2]) == settled
