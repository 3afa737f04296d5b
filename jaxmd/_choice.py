"""The names of engines and accuracies, and the rule by which engine "auto" picks one."""

from __future__ import annotations

from typing import Any, Literal

from . import _ffi

Engine = Literal["auto", "int8", "fp64", "direct", "float64"]
Accuracy = Literal["componentwise", "normwise", "exact"]
ENGINES = ("auto", "int8", "fp64", "direct", "float64")
ACCURACIES = ("componentwise", "normwise", "exact")

_PAYS = {
    ("amx_int8", "int8"): {1: 21, 2: 21, 3: 17, 4: 16, 5: 15},
    ("avx512_vnni", "int8"): {1: 21, 2: 23, 3: 17, 4: 16, 5: 15},
    ("cpu", "int8"): {1: 21, 2: 28, 3: 17, 4: 16, 5: 15},
    ("cpu", "fp64"): {1: 24, 2: 30, 3: 27, 4: 23, 5: 18},
    ("cuda", "int8"): {1: 27, 2: 22, 3: 20, 4: 19, 5: 20},
    ("cuda", "fp64"): {1: 27, 2: 28, 3: 24, 4: 24, 5: 24},
}
"""log2(m k n) from which an engine is faster than "direct", by limbs (5: five and more): `examples/bench/engines.py`.

A CPU with AMX or VNNI has rows of its own, the best first."""
_EXACT_PAYS = 12  # the same for accuracy "exact", where "direct" sums every entry in fixed point
_BEATS_FLOAT64 = 36  # log2(m k n) from which engine "int8" is faster on a GPU than a float64 product


def choose(m: Any, n: Any, k: int, limbs: int, accuracy: Accuracy, platform: str, batch: Any = 1) -> Engine:
    """Rule of engine "auto": matrix units pay where both result dimensions feed one and the product is large.

    On a GPU a batch of products that fill a tile counts as one: what "int8" costs beside its products, it costs once.

    One limb in the default accuracy needs no exact sum: the float64 product of XLA is the fastest, but for the largest
    products on a GPU.
    """
    if accuracy == "normwise":
        return "int8"  # one engine for every shape and platform: the bits may depend on neither
    sizes = all(isinstance(size, int) for size in (m, n))
    if accuracy == "componentwise" and limbs == 1:
        return "int8" if platform == "cuda" and sizes and m * n * k >= 2**_BEATS_FLOAT64 else "float64"
    fast: Engine = "int8" if accuracy == "exact" or _int8_is_fast(platform) else "fp64"
    if not sizes:
        return fast  # symbolic dimensions are exported for the large case
    if accuracy == "exact":
        return fast if m * n * k >= 2**_EXACT_PAYS else "direct"
    work = m * n * k
    if platform == "cuda" and isinstance(batch, int) and min(m, n, k) >= 64:
        work *= batch
    features = _ffi.cpu_features() if platform == "cpu" else {}
    units = (*(unit for unit, _ in _PAYS if features.get(unit)), platform)  # the best first
    pays = next(_PAYS[unit, fast] for unit in units if (unit, fast) in _PAYS)
    large = work >= 2 ** pays[min(limbs, 5)]
    return fast if large and min(m, n, k) >= 32 else "direct"


def _int8_is_fast(platform: str) -> bool:
    """Whether int8 products beat float64 slices: on GPUs, and on processors with vectors of small integers."""
    return platform == "cuda" or _ffi.cpu_features().get("isa") in ("avx2", "avx512")
