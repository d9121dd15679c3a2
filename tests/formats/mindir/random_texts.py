"""Random MindIR models for hypothesis, as text: tuples, weights shared, functions, order kept, casts that are given."""

from __future__ import annotations

from hypothesis import strategies as st

TENSOR = "f32[4,4]"
UNARY = ("ReLU", "Exp", "Sigmoid", "Tanh", "Abs", "Square", "Log", "GeLU", "NobodyKnowsThis")
BINARY = ("Add", "Mul", "Sub", "Maximum", "Pow", "MatMul")
STEPS = (
    *("unary", "unary", "binary", "binary", "weighted", "weighted", "norm", "batch_norm", "tuple", "tuple", "split"),
    *("move", "scalar", "constant", "depend", "cast", "rounding", "reduce", "call", "switch", "assign", "in_place"),
)


class Body:
    """One graph under construction. A tensor is (name, element type); a tuple is (name, element types)."""

    def __init__(self, draw: st.DrawFn, model: Model, formals: list[str], weights: list[str], state: str) -> None:
        self.draw, self.model, self.weights, self.state = draw, model, weights, state
        self.lines: list[str] = []
        self.tensors = [(name, "f32") for name in formals]
        self.tuples: list[tuple[str, tuple[str, ...]]] = []
        self.loads: list[tuple[str, str]] = []

    def emit(self, text: str, dtype: str = "", kind: str = "") -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name}: {kind or f'{dtype}[4,4]'} = {text}")
        if dtype:
            self.tensors.append((name, dtype))
        return name

    def pick(self, dtype: str = "") -> tuple[str, str]:
        return self.draw(st.sampled_from([t for t in self.tensors if dtype in ("", t[1])]))

    def step(self, what: str) -> None:
        name, dtype = self.pick()
        getattr(self, what)(name, dtype)

    # -- steps --------------------------------------------------------------------------------------------------------

    def unary(self, name: str, dtype: str) -> None:
        self.emit(f"{self.draw(st.sampled_from(UNARY))}({name})", dtype)

    def binary(self, name: str, dtype: str) -> None:
        kind = self.draw(st.sampled_from(BINARY))
        flags = ", false, false" if kind == "MatMul" else ""
        self.emit(f"{kind}({name}, {self.pick(dtype)[0]}{flags})", dtype)

    def load(self) -> str:
        weight = self.draw(st.sampled_from(self.weights))
        known = [load for of, load in self.loads if of == weight]
        if bool(known) and self.draw(st.booleans()):
            return known[0]
        name = self.emit(f"Load({weight}, {self.state})", kind=TENSOR)
        self.loads.append((weight, name))
        return name

    def weighted(self, name: str, dtype: str) -> None:
        operand = self.pick("f32")[0]
        kind = self.draw(st.sampled_from(("MatMul", "MatMul", "BiasAdd", "Mul")))
        rest = {"MatMul": ", false, true", "BiasAdd": ", 0"}.get(kind, "")
        self.emit(f"{kind}({operand}, {self.load()}{rest})", "f32")

    def norm(self, name: str, dtype: str) -> None:
        weight, operand = self.load(), self.pick("f32")[0]
        made = self.emit(f"LayerNorm({operand}, {weight}, {weight}, -1, -1, 1e-05)", kind=_tuple(3))
        for index in range(self.draw(st.integers(1, 3))):
            self.emit(f"TupleGetItem({made}, {index})", "f32")

    def batch_norm(self, name: str, dtype: str) -> None:
        training, operand = self.draw(st.booleans()), self.pick("f32")[0]
        stored = self.draw(st.sampled_from(self.weights)) if training else self.load()
        words = f"{operand}, {self.load()}, {self.load()}, {stored}, {stored}, {str(training).lower()}, 1e-05, 0.1"
        made = self.emit(f"BatchNorm({words}, 'NCHW', {self.state})", kind=_tuple(5))
        self.emit(f"TupleGetItem({made}, 0)", "f32")

    def tuple(self, name: str, dtype: str) -> None:
        """An operator of a tuple that was made before, a new one, a nested one, or one behind a Depend."""
        fitting = [t for t in self.tuples if set(t[1]) == {dtype}]
        if bool(fitting) and self.draw(st.booleans()):
            made = self.draw(st.sampled_from(fitting))[0]
        else:
            parts = [name, *(self.pick(dtype)[0] for _ in range(self.draw(st.integers(1, 2))))]
            parts += [self.draw(st.sampled_from(fitting))[0]] if bool(fitting) and self.draw(st.booleans()) else []
            made = f"v{len(self.lines)}"
            self.lines.append(f"{made} = MakeTuple({', '.join(parts)})")
            if self.draw(st.integers(0, 3)) == 0:
                self.lines.append(f"v{len(self.lines)} = Depend({made}, {self.state})")
                made = f"v{len(self.lines) - 1}"
            self.tuples.append((made, (dtype,)))
        self.emit(self.draw(st.sampled_from(("AddN({})", "Concat({}, 0)", "Stack({})"))).format(made), dtype)

    def split(self, name: str, dtype: str) -> None:
        made = self.emit(f"Split({name}, 0, 2)", kind=_tuple(2, dtype))
        if self.draw(st.booleans()):
            self.emit(f"Concat({made}, 0)", dtype)
        else:
            self.emit(f"TupleGetItem({made}, 1)", dtype)

    def move(self, name: str, dtype: str) -> None:
        kind = self.draw(st.sampled_from(("Reshape({}, [4,4])", "Transpose({}, [1,0])", "TransposeView({}, [1,0])")))
        self.emit(kind.format(name), dtype)

    def scalar(self, name: str, dtype: str) -> None:
        self.emit(f"Muls({name}, 2.0)", dtype)

    def constant(self, name: str, dtype: str) -> None:
        shape, kind = self.draw(st.sampled_from(("[]", "[4,4]"))), self.draw(st.sampled_from(("Add", "Mul", "PReLU")))
        self.emit(f"{kind}({name}, {dtype}{shape}=0.5)", dtype)

    def depend(self, name: str, dtype: str) -> None:
        state = self.emit(f"UpdateState({self.state}, {self.pick()[0]})", kind="state")
        self.emit(f"Depend({name}, {state})", dtype)

    def cast(self, name: str, dtype: str) -> None:
        to = self.draw(st.sampled_from(("f32", "f16", "bf16" if dtype == "bf16" else "f16")))
        self.emit(f"Cast({name}, {to})", to)

    def rounding(self, name: str, dtype: str) -> None:
        low = self.emit(f"Cast({name}, f16)", "f16")
        self.emit(f"Cast({low}, f32)", "f32")

    def reduce(self, name: str, dtype: str) -> None:
        self.emit(f"ReduceMean({name}, [1], true)", dtype)

    def assign(self, name: str, dtype: str) -> None:
        made = self.emit(f"AssignAdd({self.draw(st.sampled_from(self.weights))}, {self.pick('f32')[0]}, {self.state})")
        self.lines[-1] = self.lines[-1].replace(": [4,4]", f": {TENSOR}")
        self.emit(f"UpdateState({self.state}, {made})", kind="state")

    def in_place(self, name: str, dtype: str) -> None:
        other = self.pick(dtype)[0]
        made = self.emit(f"InplaceAddExt({name}, {other}, 1, {self.state})", kind=f"{dtype}[4,4]")
        state = self.emit(f"UpdateState({self.state}, {made})", kind="state")
        self.emit(f"Depend({name}, {state})", dtype)

    def call(self, name: str, dtype: str) -> None:
        function = self.model.function(self)
        if function:
            self.emit(f"call {function}({self.pick('f32')[0]}, {', '.join(self.weights)}, {self.state})", "f32")

    def switch(self, name: str, dtype: str) -> None:
        functions = self.model.function(self), self.model.function(self)
        if not all(functions) or "c" not in self.model.inputs or self is not self.model.main:
            return
        weights = ", ".join(self.weights)
        closures = []
        for function in functions:
            text = f"Partial({function}, {self.pick('f32')[0]}, {weights}, {self.state})"
            closures.append(self.emit(text, kind="function"))
        chosen = self.emit(f"Switch(c, {', '.join(closures)})", kind="function")
        self.emit(f"call {chosen}()", "f32")


def _tuple(count: int, dtype: str = "f32") -> str:
    return f"({', '.join([f'{dtype}[4,4]'] * count)})"


class Model:
    """The main graph and its functions. A function calls those that were made before it only."""

    def __init__(self, draw: st.DrawFn, most: int) -> None:
        self.draw, self.most = draw, most
        self.functions: list[tuple[str, list[str]]] = []
        self.inputs = ["x", "z", "c"]
        self.main = Body(draw, self, ["x", "z"], ["w0", "w1"], "state")

    def function(self, caller: Body) -> str:
        """One that is there, or a new one; none inside functions when there are none."""
        if caller is not self.main or (len(self.functions) > 2 or (self.functions and self.draw(st.booleans()))):
            return self.draw(st.sampled_from(self.functions))[0] if self.functions else ""
        body = Body(self.draw, self, ["a"], ["w0", "w1"], "u")
        for _ in range(self.draw(st.integers(0, 4))):
            body.step(self.draw(st.sampled_from([step for step in STEPS if step != "switch"])))
        name = f"f{len(self.functions)}"
        result = body.pick("f32")[0]
        lines = [f"{name}(a: {TENSOR}, *w0, *w1, u: state)", *body.lines, f"return {result}"]
        self.functions.append((name, lines))
        return name

    def text(self) -> str:
        for _ in range(self.draw(st.integers(1, self.most))):
            self.main.step(self.draw(st.sampled_from(STEPS)))
        parts = [self.main.pick()[0] for _ in range(self.draw(st.integers(1, 3)))]
        result = parts[0]
        if len(parts) > 1:
            result = self.main.emit(f"MakeTuple({', '.join(parts)})", kind="?")
            self.main.lines[-1] = self.main.lines[-1].replace(": ?", "")
        if self.draw(st.booleans()):
            self.main.lines.append(f"out = Depend({result}, state)")
            result = "out"
        head = [f"main(x: {TENSOR}, z: {TENSOR}, c: bool[])", f"parameter w0: {TENSOR}=0.5", f"parameter w1: {TENSOR}"]
        functions = [line for _, lines in self.functions for line in lines]
        return "\n".join([*head, *self.main.lines, f"return {result}", *functions])


@st.composite
def random_texts(draw: st.DrawFn, most: int = 14) -> str:
    """A valid model as text, for `mindir_parse.parse`."""
    return Model(draw, most).text()
