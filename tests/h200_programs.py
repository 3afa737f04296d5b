"""Compiles jaxmd programs for an H200 without having one. Not a test: test_deviceless_gpu.py runs it in a process.

    python tests/h200_programs.py           →   {"program": {"lowered": StableHLO, "compiled": HLO}, ...} as JSON
    python tests/h200_programs.py memory    →   {"product": {"given": bytes, "scratch": bytes}, ...} as JSON

JAX's CUDA plugin must be importable (JAX_PLATFORMS=cpu keeps it from looking for a device). XLA logs what it captures
in command buffers to stderr, each program's log after a line `program: NAME`.
"""

import json
import sys

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

import jaxmd

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0"
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } device_description_str: "NVIDIA H200"
"""


def arithmetic(x, y):
    return jaxmd.sqrt(abs(x * y + x / y))


def error_free(x, y):
    return jaxmd.two_sum(*jaxmd.two_prod(x.limbs[0], y.limbs[0]))


def product(engine, accuracy="componentwise"):
    return lambda a, b: jaxmd.matmul(a, b, engine=engine, accuracy=accuracy)


PROGRAMS = {  # name: (function, shapes of its operands, limbs)
    "arithmetic dd": (arithmetic, ((1000,), (1000,)), 2),
    "arithmetic od": (arithmetic, ((1000,), (1000,)), 8),
    "error-free": (error_free, ((1000,), (1000,)), 2),
    "product fp64 dd": (product("fp64"), ((256, 128), (128, 192)), 2),
    "product fp64 qd, batch": (product("fp64"), ((3, 64, 128), (3, 128, 64)), 4),
    "product direct dd": (product("direct"), ((256, 128), (128, 192)), 2),
    "product float64 d": (product("float64"), ((256, 128), (128, 192)), 1),
}


SQUARE = [(1, 8192), (2, 4096), (2, 16384), (2, 32768), (4, 4096), (8, 2048), (8, 8192), (16, 2048), (16, 8192)]
SIZES = [(limbs, n, n, n) for limbs, n in SQUARE]  # limbs, m, k, n
SIZES += [(2, 1000, 60000, 1000), (4, 2000, 4000, 2000), (5, 40, 60000, 700), (8, 1, 400000, 900)]
LARGE = {  # name: (function, shapes of its operands, limbs)
    f"{limbs} limbs, {m} x {k} x {n}, {accuracy}": (product("int8", accuracy), ((m, k), (k, n)), limbs)
    for limbs, m, k, n in SIZES
    for accuracy in ("componentwise", "normwise", "exact")
}


def lower_for_h200(function, shapes, limbs):
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    mesh = topologies.make_mesh(topo=topology, mesh_shape=(1,), axis_names=("x",))
    sharding = NamedSharding(mesh, PartitionSpec())
    limb = [jax.ShapeDtypeStruct(shape, jnp.float64, sharding=sharding) for shape in shapes]
    return jax.jit(function).lower(*(jaxmd.MultiDouble((one,) * limbs) for one in limb))


def texts(name, *program):
    print(f"program: {name}", file=sys.stderr, flush=True)
    lowered = lower_for_h200(*program)
    return {"lowered": lowered.as_text(), "compiled": lowered.compile().as_text()}


def memory(*program):
    plan = lower_for_h200(*program).compile().memory_analysis()
    given = plan.argument_size_in_bytes + plan.output_size_in_bytes
    return {"given": given, "scratch": plan.temp_size_in_bytes}


if __name__ == "__main__":
    with jax.enable_x64(True):
        if sys.argv[1:] == ["memory"]:
            answer = {name: memory(*program) for name, program in LARGE.items()}
        else:
            answer = {name: texts(name, *program) for name, program in PROGRAMS.items()}
    json.dump(answer, sys.stdout)
