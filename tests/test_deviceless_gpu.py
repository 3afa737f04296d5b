"""What XLA makes of our programs on an H200, read without one: command buffers, custom calls, folded casts.

Needs JAX's CUDA compiler, whose 400 MB are not among the test requirements: JAXMD_CUDA_PLUGIN names a folder made by
`pip install --no-deps --target FOLDER jax-cuda13-plugin==VERSION jax-cuda13-pjrt==VERSION`, VERSION being jaxlib's.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxmd
from jaxmd import _ffi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "JAXMD_CUDA_PLUGIN" not in os.environ, reason="JAXMD_CUDA_PLUGIN names no folder with the plugin"
    ),
    pytest.mark.skipif(not _ffi.has_cuda(), reason="jaxmd was built without its CUDA module"),
]
SCRIPT = Path(__file__).with_name("h200_programs.py")
UNCAPTURED = {
    f"jaxmd_{name}" for name in ("certificate", "uncertified", "float64_repair", "exact_matmul", "exact_special")
}


def run_programs(*args):
    path = [os.environ["JAXMD_CUDA_PLUGIN"], str(Path(jaxmd.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    log = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "command_buffer_conversion_pass=3"}
    flags = {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"}  # a call that stands alone is captured, too
    env = clean | log | flags | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-P", SCRIPT, *args], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def programs():
    """name → {"lowered", "compiled": text, "captured": names of the instructions that command buffers captured}"""
    result, log = run_programs()
    _, *logs = re.split(r"^program: (.*)$", log, flags=re.MULTILINE)
    for name, lines in zip(logs[::2], logs[1::2], strict=True):
        captured = re.findall(r"Creating command buffer thunk with the following thunks: (.*)", lines)
        assert captured, f"XLA's log does not tell what it captures of {name}"
        result[name]["captured"] = set(re.split(r"[,\s]+", " ".join(captured)))
    return result


def custom_calls(text):
    """instruction name → target, of the custom calls in compiled HLO that are ours"""
    found = re.findall(r'%?([\w.-]+) = [^\n]*custom-call\([^\n]*custom_call_target="(jaxmd_\w+)"', text)
    return dict(found)


def test_our_calls_are_captured_in_command_buffers(programs):
    """A handler without the trait would run outside them, and split what stands around it.

    Those of UNCAPTURED have it not, on purpose: a small product or branch with them is not recorded again and again.
    """
    assert programs
    for name, text in programs.items():
        calls = {call for call, target in custom_calls(text["compiled"]).items() if target not in UNCAPTURED}
        assert calls or name == "product float64 d"
        assert calls <= text["captured"], (name, calls - text["captured"])


@pytest.mark.parametrize(
    ("program", "target"),
    [
        ("arithmetic dd", "jaxmd_mul"),
        ("arithmetic od", "jaxmd_sqrt"),
        ("error-free", "jaxmd_two_prod"),
        ("product fp64 dd", "jaxmd_sliced_matmul"),
        ("product fp64 qd, batch", "jaxmd_sliced_matmul"),
        ("product direct dd", "jaxmd_direct_matmul"),
    ],
)
def test_lowers_to_our_target(programs, program, target):
    assert target in custom_calls(programs[program]["compiled"]).values()


def test_no_library_product_in_sliced_product(programs):
    """The orders come from our kernel alone: no float64 dot is left, in HLO or as a library call."""
    for name in ("product fp64 dd", "product fp64 qd, batch"):
        text = programs[name]["compiled"]
        assert not re.search(r"f64\[[\d,]*\]\S* dot\(", text), name
        assert "__cublas$" not in text, name


def test_float64_product_is_a_product_and_its_repair(programs):
    """Nothing is copied, cleared or filled beside them, and the repair writes where the product has written."""
    text = programs["product float64 d"]["compiled"]
    entry = text[text.index("\nENTRY") :]
    assert list(custom_calls(entry).values()).count("jaxmd_float64_repair") == 1
    assert "output_to_operand_aliasing={{}: (2, {})}" in entry
    made = re.findall(r"^  (?:ROOT )?%?\S+ = \S+ ([\w-]+)\(", entry, flags=re.MULTILINE)
    assert sorted(x for x in made if x != "parameter") in (["custom-call", "custom-call"], ["custom-call", "fusion"])


def test_no_cast_that_may_be_folded(programs):
    """XLA:GPU removes float64 → float32 → float64 round trips; our programs hold no narrowing cast at all."""
    for name, text in programs.items():
        narrow = re.findall(r"stablehlo\.convert [^\n]*xf64>\) -> tensor<[^\n]*x(?:f32|f16|bf16)>", text["lowered"])
        assert not narrow, (name, narrow)


def test_scratch_beside_operands_and_result():
    """At most 1 GiB or what operands and result take: a dd product of n = 32768 fits a card of 141 GB."""
    plans, _ = run_programs("memory")
    for name, plan in plans.items():
        assert plan["scratch"] <= max(2**30, plan["given"]), (name, plan)
    largest = plans["2 limbs, 32768 x 32768 x 32768, componentwise"]
    assert largest["given"] + largest["scratch"] <= 90 * 2**30
