"""Reads the lists, levels, kernels and schemas of op_lists."""
