"""Show circuits: the HTML page, figures for papers, and plots.

Importing this package does not import matplotlib; the functions that draw do.

``found.report(file)`` writes the page of a run. ``Report`` is the data of a page, which ``write(report, file)`` writes:
one ``MethodRun`` for each method, with its scores and the measured circuits, and the circuit that the page opens on. A
page of scores offers ``top``, ``greedy`` and ``signed``; a circuit of another selection is
``MethodRun(scores, curve, circuit=circuit)`` and ``Chosen(len(circuit), "saved")``.

``show("circuit.json", "circuit.svg")`` draws a saved circuit, by the suffix: .html, .svg, .png, .pdf, .dot or .graphml.
"""

from gradpath.report.data import (
    Chosen,
    CurvePoint,
    Example,
    MethodRun,
    Report,
    circuit_report,
    evidence,
    verdict_report,
)
from gradpath.report.page import render, show, write

__all__ = ["Chosen", "CurvePoint", "Example", "MethodRun", "Report"]
__all__ += ["circuit_report", "evidence", "render", "show", "verdict_report", "write"]
