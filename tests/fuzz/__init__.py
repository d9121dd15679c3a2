"""Random models from the operator table, converted in every way, and what must hold of the results.

python -m fuzz --seeds 0:10000 --out faults.txt    (in tests/; a line a fault; exit status 1 where there is one)
"""
