"""Loading of the compiled handlers, their registration with XLA, and the lowering rules that call them.

`jaxmd._cpu` is always built; `jaxmd._cuda` only where nvcc was found. Each module is a table, target name → handler.
Importing this file loads neither: `register` does, the first time a rule is lowered, so that `import jaxmd` stays
cheap and touches no device.
"""

import functools
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

_MODULES = {"cpu": "jaxmd._cpu", "CUDA": "jaxmd._cuda"}
CPU_ISAS = ("portable", "avx2", "avx512", "vnni", "amx")
"""What JAXMD_CPU_ISA may say: no better instruction set than this is used (ffi/isa.h)."""
CPU_ONLY = frozenset({"jaxmd_residue_product", "jaxmd_tensorcore_steps"})
"""Handlers that CUDA does without: it multiplies residues step by step, and issues the instructions of tensor cores or
runs their model in plain JAX."""
_lock = threading.Lock()
_targets: dict[str, frozenset[str]] = {}


@functools.cache
def _load(platform: str) -> ModuleType | None:
    """The compiled module of one platform, or None where it was not built."""
    name = _MODULES[platform]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def register() -> Mapping[str, frozenset[str]]:
    """Registers every compiled handler with XLA, once a process.

    Lowering does this by itself. A process that only runs deserialized programs, which lower nothing, calls it first
    (`export_checks` does).

    Returns:
        The target names of each XLA platform, `{"cpu": {...}, "CUDA": {...}}`.
    Raises:
        ImportError: the CPU module is missing, so the package was never built.
    """
    with _lock:
        if not _targets:
            found = {}
            for platform in _MODULES:
                module = _load(platform)
                handlers = {} if module is None else module.handlers()
                for name, handler in handlers.items():
                    jax.ffi.register_ffi_target(name, handler, platform=platform)
                    jax.ffi.register_ffi_target_as_batch_partitionable(name)
                found[platform] = frozenset(handlers)
            if not found["cpu"]:
                raise ImportError("jaxmd: the compiled module jaxmd._cpu is missing; `pip install .` builds it.")
            _targets.update(found)
    return _targets


def has_cuda() -> bool:
    """Whether the CUDA module was built (not whether this machine has a GPU)."""
    return _load("CUDA") is not None


def calls_cuda() -> bool:
    """Whether programs for CUDA call handlers: they were built, or this machine exports programs and has no GPU."""
    return has_cuda() or jax.default_backend() != "gpu"


def cpu_features() -> Mapping[str, Any]:
    """What the CPU handlers found: `isa`, the path they take (avx512, avx2, portable), and the processor's abilities.

    avx512_vnni and amx_int8 say what products of int8 use. The environment variable JAXMD_CPU_ISA, one of CPU_ISAS,
    leaves out what is better.

    Empty where the CPU module is missing.
    """
    module = _load("cpu")
    return {} if module is None else module.features()


def cuda_architectures() -> tuple[str, ...]:
    """What the CUDA module was compiled for, machine code `sm_XX` and PTX `compute_XX`; empty where not built."""
    module = _load("CUDA")
    return () if module is None else tuple(module.architectures().split())


def require_x64(who: str) -> None:
    """Raises the TypeError that names the fix if float64 is off, judged when `who` is traced."""
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TypeError(
            f'{who}: limbs are float64 but jax_enable_x64 is off; call jax.config.update("jax_enable_x64", True) first.'
        )


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """The safety checks that `jax.export.export` must skip for programs with multiple doubles in them.

    Export admits only the custom calls that JAX itself keeps stable. Ours are stable for one version of jaxmd, so the
    process that runs the exported program needs the same version, and calls this function (or does any arithmetic of
    its own) first, which registers the handlers.

    Returns:
        One `DisabledSafetyCheck.custom_call` for each handler, to pass as `disabled_checks=`.
    """
    register()
    cpu = _load("cpu")
    assert cpu is not None  # or `register` had raised
    # A program for CUDA may be exported where the CUDA module is not built, so its handlers are named all the same.
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in sorted(set(cpu.targets()))]


def call(
    name: str,
    out_types: Sequence[Any],
    *args: jax.Array,
    alias: dict[int, int] | None = None,
    **attrs: int | str | np.float64,
) -> list[jax.Array]:
    """Calls the handler `name` from a function that is lowered by `mlir.lower_fun`.

    Args:
        out_types: `jax.ShapeDtypeStruct`s (anything with shape and dtype) of the results.
        alias: operand index → result index that share one buffer.
        attrs: the handler's attributes; integers are passed as int64.
    """
    register()
    results = jax.ffi.ffi_call(
        name,
        [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in out_types],
        input_output_aliases=alias,
    )(*unify(args), **_attributes(attrs))
    return unify([*results, *args])[: len(results)]


def lowering(
    name: str,
    aliases: dict[int, int] | None = None,
    *,
    attrs: Callable[..., dict[str, int]] | None = None,
    elementwise: bool = False,
) -> dict[str | None, Callable[..., Any]]:
    """The lowering rules of a primitive that is one call of the handler `name`.

    Args:
        aliases: operand index → result index that share one buffer.
        attrs: the handler's attributes as a function of the primitive's parameters (keywords); None when it has none.
        elementwise: all operands and results have one shape, and entries do not depend on one another: XLA may then run
            the handler on each shard of sharded operands. Without it, it gathers them on every device.
    Returns:
        platform → rule, to be registered one by one; the key None is the rule of every other platform, which raises.
    """
    rule = jax.ffi.ffi_lowering(name, operand_output_aliases=aliases)

    def _lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        register()
        attributes = _attributes(attrs(**params) if attrs else {})
        if elementwise and _is_partitionable(ctx.avals_in[0].shape):
            return _lower_by_shards(name, ctx, operands, attributes)
        return rule(ctx, *operands, **attributes)

    def _lower_cuda(ctx: Any, *operands: Any, **params: Any) -> Any:
        # Without the module a program may still be exported from a machine that has no GPU of its own.
        if not calls_cuda():
            raise NotImplementedError(
                f"{name}: the CUDA module of jaxmd is not built; reinstall with JAXMD_CUDA=on, or run on the CPU."
            )
        return _lower(ctx, *operands, **params)

    def _refuse(ctx: Any, *operands: Any, **params: Any) -> Any:
        platforms = ", ".join(ctx.module_context.platforms)
        raise NotImplementedError(f"{name}: no kernel for platform {platforms}; jaxmd runs on cpu and cuda.")

    return {"cpu": _lower, "cuda": _lower_cuda, None: _refuse}


def _is_partitionable(shape: tuple[Any, ...]) -> bool:
    """Whether an array has axes to split, all of known length."""
    return 0 < len(shape) < len(_FACTORS) and all(isinstance(size, int) and size > 0 for size in shape)


_FACTORS = "ijklmnopqrstuvwxyz"  # Shardy's names for the axes of a sharding rule


def _lower_by_shards(name: str, ctx: Any, operands: Sequence[Any], attributes: dict[str, Any]) -> list[Any]:
    """One elementwise call that XLA splits along with its operands.

    Two marks do it: a Shardy rule (all operands and results are sharded alike) propagates shardings through the call,
    and the partitioner of batch-partitionable calls splits the leading `num_batch_dims` axes. It wants at least one
    axis that is not split, hence one more, of length 1, around the call.
    """
    from jax.extend.mlir import ir  # here, because it is slow to import
    from jax.extend.mlir.dialects import stablehlo

    def reshape(x: Any, shape: tuple[int, ...]) -> Any:
        return stablehlo.reshape(ir.RankedTensorType.get(shape, x.type.element_type), x)

    shape = (*ctx.avals_in[0].shape, 1)
    axes = "[" + ", ".join(_FACTORS[: len(shape)]) + "]"
    sizes = ", ".join(f"{factor}={size}" for factor, size in zip(_FACTORS, shape, strict=False))
    alike = [", ".join([axes] * len(avals)) for avals in (ctx.avals_in, ctx.avals_out)]
    marks = {
        "sdy.sharding_rule": ir.Attribute.parse(
            f"#sdy.op_sharding_rule<({alike[0]})->({alike[1]}) {{{sizes}}}, custom>"
        ),
        "mhlo.frontend_attributes": ir.DictAttr.get({"num_batch_dims": ir.StringAttr.get(str(len(shape) - 1))}),
    }
    inner = ctx.replace(
        avals_in=[jax.core.ShapedArray(shape, aval.dtype) for aval in ctx.avals_in],
        avals_out=[jax.core.ShapedArray(shape, aval.dtype) for aval in ctx.avals_out],
    )
    rule = jax.ffi.ffi_lowering(name, extra_attributes=marks)
    results = rule(inner, *(reshape(x, shape) for x in operands), **attributes)
    return [reshape(x, shape[:-1]) for x in results]


def unify(args: Sequence[Any]) -> list[Any]:
    """Makes all operands vary over the same manual mesh axes, as `shard_map(check_vma=True)` requires.

    Outside `shard_map` nothing varies and the operands come back as they are. Without it the cotangent of an operand
    that is the same on every device would have another type than the operand.
    """
    varying = [jax.typeof(x).manual_axis_type.varying for x in args]
    everything = frozenset().union(*varying)
    return [_pcast(x, everything - own) for x, own in zip(args, varying, strict=True)] if everything else list(args)


def _pcast(x: Any, axes: frozenset[str]) -> Any:
    return jax.lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x


def _attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: np.int64(value) if isinstance(value, int) else value for key, value in attrs.items()}
