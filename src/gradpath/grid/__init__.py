"""Resumable grids of measurements, which ``gradpath curve`` and the paper's tables share.

An experiment (``experiment``) is a list of jobs (``jobs``) and an outcome. It works on a bench (``bench``): a model, a
request (``request``) and a store. The jobs fill the store with cells, one small file per finished measurement. The
outcome reads the cells and makes a table and figures. So a run that was killed continues where it stopped, and
experiments in one folder share scores and circuits.
"""
