"""Training steps as graphs: built from a forward graph, and run.

    gradients   rules by operator, and the driver that goes through a graph backwards
    forward     what a step is made from: torch's export, reading, lowerings of what has no gradient, losses
    step        one graph of forward, gradients, finite check, optimizer and loss scale, and what its tensors are for
    run         steps on ONNX Runtime: state on a device, data, epochs, checkpoints
    mindspore   the other runtime: .mindir files, which MindSpore differentiates itself

Imports go down this list reversed: run -> step -> forward -> gradients, and mindspore -> step. `option_text` stands
below them all. Of the rooms beside, numerics is asked for strict steps, and the planner for the regions of norms.
"""
