"""A small model with a norm, a branch and a state, and whether a file of it survives a conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ampgraph

LINES = 300_000  # of Python, that reading and converting the small file may run: five times what it takes

SMALL = """
    main(x: f32[4,4], c: bool[])
      parameter w: f32[4,4]
      parameter g: f32[4]
      l = Load(w, state)
      s = Load(g, state)
      a = MatMul(x, l, false, false)
      n: (f32[4,4], f32[4,1], f32[4,1]) = LayerNorm(a, s, s, -1, -1, 1e-05)
      y = TupleGetItem(n, 0)
      t = MakeTuple(y, a)
      k: f32[8,4] = Concat(t, 0)
      h = Cast(k, f16)
      i = Cast(h, f32)
      p = Partial(yes, i, w, state)
      q = Partial(no, i)
      z = Switch(c, p, q)
      r: f32[8,4] = call z()
      d = AssignAdd(g, f32[4]=0.5, state)
      u = UpdateState(state, d)
      m: f32[8,4] = Mul(r, f32[4]=0.25)
      o = Depend(m, u)
      return o
    yes(a: f32[8,4], *w, u: state)
      l = Load(w, u)
      b = MatMul(a, l, false, false)
      return b
    no(e: f32[8,4])
      f = Reshape(e, [8,4])
      return f
"""


def survives(path: Path, content: bytes, **options: Any) -> bool:
    """Whether a file is converted; False where it is refused. Anything but an AmpError is a failure."""
    path.write_bytes(content)
    done = True
    for step in (lambda: ampgraph.inspect(path), lambda: ampgraph.convert(path, **options)):
        try:
            step()
        except ampgraph.AmpError as error:
            assert error.code != "AMP901", error  # a defect of ours
            assert error.message and len(str(error)) < 2000
            done = False
    return done
