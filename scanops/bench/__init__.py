"""``scanops bench``: every kind of scan against its peers and a copy of the same bytes, in one run.

    grid -> cells -> built kernels -> measured, checked results -> JSON, table, picture

``cells`` says what a cell is, ``table`` and ``grid`` which there are and what each must reach; ``peers`` has one file
for each thing to be compared with; ``timing``, ``check`` and ``tensors`` say how; ``run`` puts them together;
``report`` and ``picture`` show it.
"""
