"""Resumable grids of measurements: ``gradpath curve``, ``gradpath run`` and the paper's tables share one driver.

A ``Study`` (``spec``) is a recipe some of whose fields have several values. ``Bench.measure`` (``bench``) measures the
circuits of its recipes, and keeps every finished measurement as a cell in a ``Store``: a small sealed file.
An experiment makes tables and figures of cells (``outcome``). So a run that was killed continues where it stopped, and
experiments in one folder share scores and circuits.
"""
