"""``map`` and ``then`` of ``scanops.scan``: pointwise functions of several tensors in the kernel of the scan."""
