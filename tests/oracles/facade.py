"""A tensor that says it lives on CUDA and computes on the CPU: PyTorch's CUDA autocast acts on it without a GPU.

The wrapper has the dispatch keys CUDA, AutocastCUDA and Python. Autocast's kernels are in every build of PyTorch: they
see the device, cast, and hand down to the Python key, where the operator runs on the plain CPU tensor inside. So lists,
promotion and the cache of weights are PyTorch's own, and the numbers are real float16 numbers.

A CPU build has no device guard for CUDA, which autograd asks for: everything runs below autograd. Composite operators,
which autograd's keys would take apart, are taken apart here, with autocast as it stood: one that no list names with
autocast on, so that what is inside is cast; a listed one with autocast off. That is what a GPU's eager PyTorch does.
cuDNN's own casts of LSTM, GRU and RNN are in no CPU build: they are assumed, everything float32 becomes low.
"""

from __future__ import annotations

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

torch.cuda._lazy_init = lambda: None  # device="cuda" in a factory asks for it

RNNS = {"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"}
WHOLE = {"aten::scaled_dot_product_attention", *RNNS}  # one kernel on a GPU: one operator here
HALF_TO_FLOAT = {torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default}
COMPOSITE = "CompositeImplicitAutograd"


def types_of(tree):
    """The types of all tensors in nested arguments."""
    return [str(t.dtype)[6:] for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _on_cpu(value):
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def _inner(value):
    return value.held if isinstance(value, Facade) else _on_cpu(value)


def wrapped(tree):
    """Every plain tensor of nested results as a facade."""
    return tree_map(lambda t: Facade(t) if isinstance(t, torch.Tensor) and not isinstance(t, Facade) else t, tree)


class Factories(TorchDispatchMode):
    """torch.empty(..., device="cuda"), wherever it is called from, makes a facade."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(t, Facade) for t in leaves):
            return Facade.__torch_dispatch__(func, types, args, kwargs)
        cuda = any(isinstance(v, torch.device) and v.type == "cuda" for v in leaves)
        out = func(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        return wrapped(out) if cuda else out


class Facade(torch.Tensor):
    """A CPU tensor behind the keys of a CUDA one.

    ``noted``: None, or what was run: (where, operator, types of its tensors, types of its results, their numbers).
    """

    noted: list | None = None
    place = ""
    enabled = False  # autocast is on
    within = False  # a listed operator is being taken apart

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=torch.device("cuda:0"), requires_grad=requires_grad,
        )  # fmt: skip

    def __init__(self, inner, requires_grad=False):
        self.held = inner

    def __repr__(self, *, tensor_contents=None):
        return f"Facade({self.held})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def contiguous(self, memory_format=torch.contiguous_format):
        """Python's own method asks for a device guard; so does the next."""
        return torch.ops.aten.contiguous.default(self, memory_format=memory_format)

    def __invert__(self):
        return torch.ops.aten.bitwise_not.default(self)

    def __getitem__(self, index):
        """Numbers, slices, None and an ellipsis, by the operators that PyTorch's indexing calls on a device."""
        index = index if isinstance(index, tuple) else (index,)
        if Ellipsis in index:
            place = index.index(Ellipsis)
            taken = sum(one is not None and one is not Ellipsis for one in index)
            index = (*index[:place], *[slice(None)] * (self.dim() - taken), *index[place + 1 :])
        found, dim = self, 0
        for one in index:
            if one is None:
                found, dim = torch.ops.aten.unsqueeze.default(found, dim), dim + 1
            elif isinstance(one, int):
                found = torch.ops.aten.select.int(found, dim, one)
            else:
                whole = one == slice(None)
                found = found if whole else torch.ops.aten.slice.Tensor(found, dim, one.start, one.stop, one.step or 1)
                dim += 1
        return found

    @classmethod
    @contextlib.contextmanager
    def autocast_inside(cls, func):
        """The Python key's handler runs with autocast off; what is in an operator of no list runs with it on again."""
        key, old = torch._C.DispatchKey.AutocastCUDA, cls.within
        listed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutocastCUDA")
        cls.within = old or listed
        again = cls.enabled and not cls.within
        before = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
        if again:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        try:
            yield
        finally:
            cls.within = old
            if again:
                torch._C._dispatch_tls_set_dispatch_key_excluded(key, before)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        kwargs, name = kwargs or {}, func._schema.name
        if name not in WHOLE and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE):
            with Factories(), cls.autocast_inside(func):
                found = func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if name in RNNS and cls.enabled and not cls.within:
            return cls._cudnn(func, args, kwargs)
        if func in HALF_TO_FLOAT and args[2]:  # a CUDA kernel reads float16 and computes float32; the CPU's does not
            out = func(args[0].held.float(), args[1], False)
        else:
            out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        cls.note(func, types_of((args, kwargs)), types_of(out), args)
        if name.endswith("_") and args and isinstance(args[0], Facade):
            return args[0]
        return wrapped(out)

    @classmethod
    def _cudnn(cls, func, args, kwargs):
        """A cuDNN kernel under autocast: every float32 tensor is cast down. Computed in float32 and rounded."""
        low = torch.get_autocast_dtype("cuda")

        def down(value):
            return value.held.to(low).float() if isinstance(value, Facade) and value.is_floating_point() else value

        out = func(*tree_map(_inner, tree_map(down, args)), **tree_map(_inner, tree_map(down, kwargs)))
        cls.note(func, [str(low)[6:]], [str(low)[6:]], ())
        return tree_map(lambda t: Facade(t.to(low)) if isinstance(t, torch.Tensor) else t, out)

    @classmethod
    def note(cls, func, given, made, args):
        if cls.noted is not None:
            numbers = [id(t) for t in tree_leaves(args) if isinstance(t, Facade)]
            cls.noted.append((cls.place, str(func), given, made, numbers))


@contextlib.contextmanager
def below_autograd():
    """Autograd would ask for a device guard, which ends the process."""
    with torch._C._AutoDispatchBelowAutograd(), Factories():
        yield


@contextlib.contextmanager
def autocast_cuda(dtype=torch.float16, cache=True):
    """The body of ``with torch.autocast("cuda", dtype)``, which switches itself off where CUDA is missing."""
    old = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.set_autocast_cache_enabled(cache)
    torch.autocast_increment_nesting()
    Facade.enabled = True
    try:
        with below_autograd():
            yield
    finally:
        Facade.enabled = False
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", old[0])
        torch.set_autocast_dtype("cuda", old[1])
        torch.set_autocast_cache_enabled(old[2])
