"""MatMul, Gemm and Einsum, each against torch and by numerical differences."""

import re

import onnx_ir as ir
import pytest
import torch

from ampgraph.core.errors import AmpError
from training.gradients import check, model_of, normal, with_gradients

SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (1, 4, 5)),
    ((2, 3, 2, 4), (1, 3, 4, 2)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((4,), (2, 4, 5)),
    ((4,), (3, 2, 4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4,)),
    ((1, 1, 1), (1, 1)),
    ((2, 1, 1), (1, 1, 1)),
]


def dims(shape: tuple[int, ...], letters: str | None) -> str:
    """Symbols for all sizes but 1, named from the last axis; the batch of two operands gets the same."""
    if letters is None:
        return ",".join(map(str, shape))
    names = letters[len(letters) - len(shape) :]
    return ",".join(name if size != 1 else "1" for name, size in zip(names, shape, strict=True))


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", ["static", "symbols", "unknown"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(shapes, dynamic):
    one, two = (normal(*shape, seed=n) for n, shape in enumerate(shapes))
    same = dynamic == "symbols"
    x = dims(shapes[0], {"static": None, "symbols": "PBMK", "unknown": "PBMK"}[dynamic] if one.ndim > 1 else None)
    y = dims(shapes[1], {"static": None, "symbols": "PBKN", "unknown": "QCLN"}[dynamic] if two.ndim > 1 else None)
    result = ",".join("RSTU"[: torch.matmul(torch.tensor(one), torch.tensor(two)).ndim])
    text = f"g (float[{x}] x, float[{y}] y) => (float[{result}] z) {{ z = MatMul (x, y) }}"
    assert same or dynamic != "symbols"
    check(text, {"x": one, "y": two}, torch.matmul)


def test_a_weight_has_one_gemm_and_no_transposed_copy():
    text = "g (float[B,S,4] x, float[4,5] w) => (float[B,S,5] z) { z = MatMul (x, w) }"
    model = ir.from_proto(with_gradients(model_of(text), ["x", "w"]))
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("Gemm") == 2 and "Transpose" not in kinds


@pytest.mark.share(2)
@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (3, 1), (1, 1), (3, 5)], ids=str)
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.5, -2.0)], ids=str)
def test_gemm(flips, bias, factors):
    x, y = normal(3, 4), normal(4, 5, seed=1)
    x, y = (value.T.copy() if flip else value for value, flip in zip((x, y), flips, strict=True))
    arrays = {"x": x, "y": y} | ({} if bias is None else {"c": normal(*bias, seed=2)})
    alpha, beta = factors
    given = ", ".join(f"float[{','.join(map(str, a.shape))}] {name}" for name, a in arrays.items())
    names = ", ".join(arrays)
    text = (
        f"g ({given}) => (float[3,5] z) {{ z = Gemm <transA = {flips[0]}, transB = {flips[1]}, "
        f"alpha = {alpha}, beta = {beta}> ({names}) }}"
    )

    def function(x, y, c=0):
        return alpha * (x.T if flips[0] else x) @ (y.T if flips[1] else y) + beta * c

    check(text, arrays, function)


def test_gemm_with_a_dynamic_batch():
    text = "g (float[B,4] x, float[5,4] w, float[5] c) => (float[B,5] z) { z = Gemm <transB = 1> (x, w, c) }"
    arrays = {"x": normal(3, 4), "w": normal(5, 4, seed=1), "c": normal(5, seed=2)}
    check(text, arrays, torch.nn.functional.linear)


EQUATIONS = {
    "ab,bc->ac": ((2, 3), (3, 4)),
    "ab,bc": ((2, 3), (3, 4)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "bqhd,bkhd->bhqk": ((2, 3, 2, 4), (2, 5, 2, 4)),
    "bhqk,bkhd->bqhd": ((2, 2, 3, 5), (2, 5, 2, 4)),
    "bsd,d->bs": ((2, 3, 4), (4,)),
    "i,j->ij": ((3,), (4,)),
    "i,i->": ((3,), (3,)),
    "abc,cd->ad": ((2, 3, 4), (4, 5)),
    "ab,cd->bd": ((2, 3), (4, 5)),
    "ab,ab->ab": ((2, 3), (2, 3)),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
    "...ij,jk->...ik": ((2, 2, 3, 4), (4, 5)),
    "...ij,...jk->i...k": ((2, 1, 3, 4), (1, 3, 4, 5)),
    "...ij,...jk": ((2, 3, 4), (2, 4, 5)),
    "ij->ji": ((2, 3),),
    "abc->b": ((2, 3, 4),),
    "ab,bc,cd->ad": ((2, 3), (3, 4), (4, 5)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation, dynamic):
    arrays = {f"x{n}": normal(*shape, seed=n) for n, shape in enumerate(EQUATIONS[equation])}

    def declared(n, a):
        sizes = (f"{'ABCDEF'[i]}{n}" if dynamic else str(size) for i, size in enumerate(a.shape))
        return f"float[{','.join(sizes)}] x{n}"

    given = ", ".join(declared(n, a) for n, a in enumerate(arrays.values()))
    rank = torch.einsum(equation, *map(torch.tensor, arrays.values())).ndim
    result = ",".join("RSTU"[:rank])
    text = f'g ({given}) => (float[{result}] z) {{ z = Einsum <equation = "{equation}"> ({", ".join(arrays)}) }}'
    check(text, arrays, lambda *tensors: torch.einsum(equation, *tensors))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ab,ab->ab", [(4, 3), (1, 3)]),  # 1 in one operand, repeated by the other
        ("ab,bc->ac", [(2, 1), (4, 3)]),  # the same where it is summed
        ("ab,ab,b->a", [(2, 1), (1, 3), (3,)]),
        ("ab,bc->c", [(2, 4), (1, 3)]),
    ],
)
@pytest.mark.parametrize("known", ["all", "ones", "rank"])
def test_einsum_that_repeats(equation, shapes, known):
    arrays = {f"x{n}": normal(*shape, seed=n) for n, shape in enumerate(shapes)}

    def dim(n, axis, size):
        return str(size) if known == "all" or (known == "ones" and size == 1) else f"{'ABC'[axis]}{n}"

    given = ", ".join(
        f"float[{','.join(dim(n, axis, size) for axis, size in enumerate(a.shape))}] x{n}"
        for n, a in enumerate(arrays.values())
    )
    result = ",".join("RS"[: len(equation.split("->")[1])])
    text = f'g ({given}) => (float[{result}] z) {{ z = Einsum <equation = "{equation}"> ({", ".join(arrays)}) }}'
    check(text, arrays, lambda *tensors: torch.einsum(equation, *tensors))


@pytest.mark.parametrize(
    ("equation", "shape", "told"), [("ii->i", "3,3", "diagonal"), ("...i->i", "2,3", "ellipsis")], ids=str
)
def test_einsum_that_is_refused(equation, shape, told):
    text = f'g (float[{shape}] x) => (float[N] z) {{ z = Einsum <equation = "{equation}"> (x) }}'
    with pytest.raises(AmpError, match=re.escape(told)) as caught:
        with_gradients(model_of(text), ["x"])
    assert caught.value.code == "AMP210"
