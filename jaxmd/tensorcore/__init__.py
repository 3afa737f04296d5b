"""What tensor cores compute, bit for bit: a model of their arithmetic, and what it proves.

spec, specs                      the table of instructions
to_bits, from_bits               arrays of values to and from the bits that everything here takes and gives
fused_dot_add, mma, matmul       one step, one instruction, a product with promotion and split-K
explain                          one output walked through, as text and as a picture
is_exact, max_exact_k            certificate that sums do not round, for all operands of so many bits
was_exact                        the same for given operands
probe                            what an unknown unit computes
issue, verify                    the instruction itself on the GPU at hand, and the model held against it
"""

from ._bits import FORMATS as FORMATS
from ._bits import Format as Format
from ._bits import bits_of as bits_of
from ._bits import from_bits as from_bits
from ._bits import to_bits as to_bits
from ._bits import value_of as value_of
from ._certificate import is_exact as is_exact
from ._certificate import max_exact_k as max_exact_k
from ._chain import fused_dot_add as fused_dot_add
from ._chain import matmul as matmul
from ._chain import mma as mma
from ._chain import was_exact as was_exact
from ._explain import Explanation as Explanation
from ._explain import explain as explain
from ._issue import issue as issue
from ._issue import rows as rows
from ._probe import Record as Record
from ._probe import probe as probe
from ._specs import Spec as Spec
from ._specs import spec as spec
from ._specs import specs as specs
from ._verify import KINDS as KINDS
from ._verify import Verdict as Verdict
from ._verify import verify as verify
