"""Every public function that is given the wrong thing says which function it was, what came and what was wanted."""

import jax
import numpy as np
import pytest

import jaxmd
from jaxmd import tensorcore

X = jaxmd.MultiDouble((np.ones((2, 2)), np.zeros((2, 2))))  # operands that no operation has to make
SINGLE = np.ones((2, 2), np.float32)
SPEC = tensorcore.spec("hopper", "mma.m16n8k16.f32.f16.f16.f32")
A, B, C = (np.zeros(shape, w) for shape, w in (((2, 16), np.uint16), ((16, 2), np.uint16), ((2, 2), np.uint32)))
STEPS = np.zeros((2, SPEC.length), np.uint16)

WRONG = {
    "object": object(),
    "function": lambda x: x,
    "ragged": [[1, 2], [3]],
    "complex": np.ones((2, 2), complex),
    "texts": np.array([["a", "b"], ["c", "d"]]),
    "dict": {"a": 1},
}
CALLS = {  # name: valid arguments, of which one is then replaced
    **dict.fromkeys(("abs", "argmax", "argsort", "asarray", "ceil", "cumsum", "diag", "floor", "isnan", "max"), (X,)),
    **dict.fromkeys(
        ("mean", "min", "ones_like", "prod", "qd", "round", "sign", "sort", "sqrt", "squeeze", "sum"), (X,)
    ),
    **dict.fromkeys(("to_strings", "trace", "transpose", "tril", "triu", "zeros_like"), (X,)),
    **dict.fromkeys(("dot", "matmul", "maximum", "minimum", "outer"), (X, X)),
    **dict.fromkeys(("zeros", "ones", "eye"), (2,)),
    **dict.fromkeys(("two_sum", "two_prod"), (SINGLE, SINGLE)),
    **dict.fromkeys(("block_row", "block_toeplitz"), (None,)),
    **dict.fromkeys(("jacfwd", "jacrev", "vjp"), (None,)),
    **dict.fromkeys(("random.normal", "random.uniform"), (jax.random.key(0), (2,))),
    **dict.fromkeys(("tensorcore.mma", "tensorcore.was_exact"), (A, B, C, SPEC)),
    "broadcast_to": (X, (2, 2)),
    "choose_engine": ((2, 2), (2, 2)),
    "clip": (X, X, X),
    "collect": (np.ones((2, 2, 2)), np.zeros(2, np.int32), np.zeros(2, np.int32), 10, 2),
    "concatenate": ([X, X],),
    "copies": (X, 2),
    "einsum": ("ij,jk->ik", X, X),
    "expand_dims": (X, 0),
    "from_limbs": (np.ones(2), np.ones(2)),
    "full": ((2,), 1),
    "load": (None,),
    "matmul_f32": (SINGLE, SINGLE),
    "power": (X, 2),
    "prepare": (X, "left"),
    "quarter": (X, 0),
    "reshape": (X, (4,)),
    "save": (None, X),
    "sliced_matmul": (np.ones((2, 2, 2)), np.ones((2, 2, 2))),
    "slices": (X, 10, 3, 0),
    "split_orders": (np.ones((2, 4)), 2),
    "stack": ([X, X],),
    "where": (np.ones((2, 2), bool), X, X),
    "tensorcore.bits_of": (1.0, "f16"),
    "tensorcore.explain": (A[0], B[:, 0], C[0, 0], SPEC),
    "tensorcore.from_bits": (A, "f16"),
    "tensorcore.fused_dot_add": (STEPS, STEPS, C[0], SPEC),
    "tensorcore.is_exact": (4, 4, 16, SPEC),
    "tensorcore.issue": (A, B, C, SPEC),
    "tensorcore.matmul": (A, B, SPEC),
    "tensorcore.max_exact_k": (4, 4, SPEC),
    "tensorcore.probe": (None, "f16"),
    "tensorcore.rows": (SPEC,),
    "tensorcore.spec": ("hopper", "mma.m16n8k16.f32.f16.f16.f32"),
    "tensorcore.to_bits": (SINGLE, "f32"),
    "tensorcore.value_of": (0, "f16"),
    "tensorcore.verify": (SPEC,),
}
TAKEN = {  # (name, argument): what is right there, or found wrong only later
    ("jacfwd", 0): {"function"},
    ("jacrev", 0): {"function"},
    ("vjp", 0): {"function"},
    ("where", 0): {"object", "function", "complex", "texts", "dict"},
    ("concatenate", 0): {"ragged"},
    ("split_orders", 0): {"complex"},
    ("tensorcore.probe", 0): {"function"},
}


def find(name):
    value = jaxmd
    for part in name.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments(name):
    function = find(name)
    for i in range(len(CALLS[name])):
        for kind in WRONG.keys() - TAKEN.get((name, i), set()):
            arguments = [*CALLS[name][:i], WRONG[kind], *CALLS[name][i + 1 :]]
            with pytest.raises((TypeError, ValueError, IndexError)) as caught:
                function(*arguments, **({"k": 16} if name == "tensorcore.probe" else {}))
            own, through = f"jaxmd.{name}: ", "jaxmd.asarray: "
            assert str(caught.value).startswith((own, through)), (name, i, kind, str(caught.value))


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: jaxmd.matmul_f32(np.zeros((2, 3, 4), "f4"), np.zeros((5, 4, 3), "f4")),
            "leading axes that",
        ),
        (lambda: jaxmd.matmul_f32("text", SINGLE), "a is str; float32"),
        (lambda: jaxmd.matmul_f32([[1.0]], SINGLE), "a is list; float32"),
        (lambda: jaxmd.matmul(X, np.ones((2, 2), complex)), "jaxmd.matmul: b: dtype complex128 came; real numbers"),
        (lambda: jaxmd.matmul(np.array([["x"]], object), X), "jaxmd.matmul: a: 'x' is not a number"),
        (lambda: jaxmd.matmul(X, X, addend="x"), "jaxmd.matmul: addend is str; a MultiDouble or an array"),
        (lambda: jaxmd.matmul(X, X, addend=[1.0, 2.0]), "jaxmd.matmul: addend is list; a MultiDouble or an array"),
        (lambda: jaxmd.matmul(X, X, addend=jaxmd.prepare(X, "left")), "jaxmd.matmul: addend is Prepared; a Multi"),
        (lambda: jaxmd.prepare(np.ones((2, 2), complex), "left"), "jaxmd.prepare: x: dtype complex128 came"),
        (lambda: jaxmd.zeros((2, -1)), r"jaxmd.zeros: .*nonnegative"),
        (lambda: jaxmd.reshape(X, (3,)), "jaxmd.reshape: "),
        (lambda: jaxmd.diag(jaxmd.zeros(())), "jaxmd.diag: "),
        (lambda: jaxmd.random.normal(jax.random.key(0), (-1,)), r"jaxmd.random.normal: shape is \(-1,\)"),
        (lambda: jaxmd.slices(X, "10", 3, 0), "jaxmd.slices: width is str; an integer"),
        (lambda: tensorcore.matmul(A, B[:3], SPEC), "tensorcore.matmul: a has shape"),
        (lambda: tensorcore.matmul(A, B, "hopper"), "spec is str; a Spec was wanted"),
        (lambda: tensorcore.mma("text", B, C, SPEC), "a is str; an array of bits"),
        (lambda: tensorcore.mma(A, B, C[:1], SPEC), "tensorcore.mma: a, b and c have shapes"),
        (lambda: tensorcore.explain("text", B[:, 0], C[0, 0], SPEC), "a is str; numbers or an array of bits"),
        (lambda: tensorcore.is_exact("8", 8, 16, SPEC), "tensorcore.is_exact: bits_a = '8'"),
        (lambda: tensorcore.specs("foo"), "tensorcore.specs: architecture 'foo' came"),
        (lambda: tensorcore.value_of(1 << 16, "f16"), "tensorcore.value_of: bits is 65536; .* 16 bits"),
        (lambda: tensorcore.value_of(-1, "f16"), "tensorcore.value_of: bits is -1"),
        (lambda: tensorcore.bits_of("1", "f16"), "tensorcore.bits_of: value is str"),
        (lambda: tensorcore.probe(lambda a, b, c: c, "f16", k=0), "tensorcore.probe: k is 0"),
        (lambda: tensorcore.probe(lambda a, b, c: c, "f16", k=None), "tensorcore.probe: k is None"),
        (lambda: tensorcore.probe(lambda a, b, c: c, "s8", k=16), "tensorcore.probe: format s8 came"),
        (lambda: tensorcore.probe(lambda a, b, c: "x", "f16", k=16), "tensorcore.probe: dot returned"),
        (lambda: tensorcore.probe(lambda a, b, c: c, "f16", k=16), "tensorcore.probe: what dot returned"),
        (lambda: jaxmd.choose_engine((3, 3), (3, 3), "2"), "choose_engine: limbs is '2'; an integer"),
        (lambda: jaxmd.choose_engine((3, 3), (3, 3), 2.0), "choose_engine: limbs is 2.0"),
        (lambda: jaxmd.choose_engine((3, 3), (3, 3), True), "choose_engine: limbs is True"),
        (lambda: jaxmd.choose_engine((3, -1), (-1, 3)), "choose_engine: a_shape is .*no negative size"),
        (lambda: jaxmd.choose_engine((3, 3.5), (3.5, 3)), "choose_engine: a_shape is .*tuple of integers"),
        (lambda: jaxmd.choose_engine((2, 3, 3), (3, 3, 3)), "choose_engine: .*leading axes must broadcast"),
        (lambda: jaxmd.choose_engine((), (3, 3)), "choose_engine: a_shape is .*at least one axis"),
    ],
)
def test_what_came_and_what_was_wanted(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()
