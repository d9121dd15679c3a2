"""Regions as exporters write them out: each way is a graph in text. Adding a way is adding its text.

A file stands for one region, ``shared.toml`` for what all of them use::

    region  = "RMSNormalization"             the operator that the nodes compute together; the lists speak of it
    since   = 23                             the opset from which it can be written as that operator; absent: it is not
    anchors = ["Sqrt", "mindspore::Rsqrt"]   where the search starts, at the last: operators that few other nodes are
    ends    = ["normal", "y"]                the region's last value; of several the farthest that is there

    unchecked = ["eps"]                       numbers for which anything may stand: such a region is decided as one,
                                              and never written as its operator

    [numbers]                                 names that stand for constants of one element
    eps  = "> 0"                              more than that
    two  = 2                                  that number
    root = "~ 1.41421"                        that number, to one part in a hundred

    [stored]                                  names that stand for stored tensors
    scale = "vector"                          of at most one dimension; "row": of one that is not 1; "any"

    [variants]
    "x / root" = '''
        square = Pow (x, two)
        mean = ReduceMean <axes: ints = @axes> (square)
        shifted = Add (mean, eps)
        root = Sqrt (shifted)
        normal = Div (x, root)
        y = Mul (normal, scale)
    '''

The text of a variant is what ``onnx.parser`` reads between the braces of a function. Operators are named by role, the
standard operator (``mindspore.Rsqrt`` and ``com.microsoft.Gelu`` where the standard has none). Every name is a part
that a match binds; code asks for ``x`` (what goes in), ``scale``, ``bias`` and ``eps``, so these mean the same
everywhere. A name that no line of the text writes, and that is neither number nor stored, is any tensor.

- ``@axes``: an attribute that must be the same wherever the name stands; ``<axes = [-1]>``: that very value. Whether
  the axes are an attribute or an operand (``[operand_attributes]`` of the shared file) is no matter.
- What ``shared.toml`` says need not be written again: operands of a commutative operator swapped; casts from float32 to
  float32 and identities on the way; functions, such as ``Square``, for which each way stands there once. A node of the
  text may stand twice in a model, with the same operands: one difference computed for the square and for the quotient.
- What the anchor and the nodes before it write may be read by others, but for names that ``private`` lists; what comes
  after the anchor is read by the region alone: where others read an end, the region ends there.
- Variants are tried in the order of the files' names and lines; the first that is found counts.

A test for a new variant stands in tests/planner/test_regions.py and fails without its text.
`oplists.patterns.mismatches`
says for a node why each variant is not there.
"""
