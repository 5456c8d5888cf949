"""Show circuits: the HTML page, drawings for papers, plots and notebook cards.

Importing this package does not import matplotlib; the functions that draw do.

To write the page of a run, as ``find`` does::

    from gradpath.report import Chosen, CurvePoint, MethodRun, Report, evidence, write

    circuits = [rank(scores)[:n] for n in counts]
    curve = [CurvePoint.of("top", result) for result in evaluate(model, circuits, task)]
    write(
        Report(
            title="ioi in smollm2", model="smollm2", task="ioi",
            runs=[MethodRun(scores, curve)],        # one for each method; name="..." tells equal ones apart
            chosen=Chosen(edges=1000, how="top"),   # the requested circuit; run=0 is its method
            examples=evidence(task, result, model.tokenizer),   # for the result of the requested circuit
            command="gradpath find --model smollm2 --task ioi",
            about={"seed": 0, "seconds": 41.2, "torch": torch.__version__},   # further facts to list
        ),
        "report.html",
    )

A page of scores offers ``top``, ``greedy`` and ``signed``. For a circuit of another selection, pass
``MethodRun(scores, curve, circuit=circuit)`` and ``Chosen(len(circuit), "saved")``; points of the curve with the
same ``how`` as the circuit belong to it.

``render(report)`` returns the text of the page. ``show("circuit.json", "circuit.svg")`` draws a saved circuit, by
the suffix: .html, .svg, .png, .pdf, .dot or .graphml.
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
