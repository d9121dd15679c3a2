"""Prints every kernel that the onnxruntime of this Python registers, as JSON, for _generate.py."""

import json
import sys

OPEN = 2**31 - 1  # how the registry writes that a range has no end


def main() -> None:
    """{"version": ..., "kernels": [[provider, domain, operator, first, last or null, {variable: types}], ...]}."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kernels = []
    for kernel in state.get_all_opkernel_def():
        first, last = kernel.version_range
        types = {variable: sorted(admitted) for variable, admitted in kernel.type_constraints.items()}
        kernels.append([kernel.provider, kernel.domain, kernel.op_name, first, None if last == OPEN else last, types])
    json.dump({"version": onnxruntime.__version__, "kernels": kernels}, sys.stdout)


if __name__ == "__main__":
    main()
