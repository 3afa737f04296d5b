"""Strict settings for every test: x64, no silent promotion, four CPU devices, fixed seeds; reasons for skips."""

import contextlib
import warnings

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)  # for shard_map

with contextlib.suppress(ImportError):  # a GPU machine may have pytest, numpy and mpmath only
    from hypothesis import settings

    settings.register_profile("jaxmd", derandomize=True, deadline=None)
    settings.load_profile("jaxmd")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def _has_gpu() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return bool(jax.devices("gpu"))
        except RuntimeError:
            return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        reason = pytest.mark.skip(reason="slow; run with --slow")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(reason)
    needs_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if needs_gpu and not _has_gpu():
        for item in needs_gpu:
            item.add_marker(pytest.mark.skip(reason="JAX finds no NVIDIA GPU"))
