"""Measurements of scanops, beside the package and not in its wheel: ``python -m benchmarks COMMAND``.

``python -m benchmarks`` lists the commands. Each writes, with ``-o FILE``, one JSON document that names the GPU, the
versions and the date; the committed ones are in ``benchmarks/results``.
"""
