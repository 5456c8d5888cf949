"""Seeing a circuit: the HTML page, drawings for papers, plots and notebook cards.

Importing this package is quick; matplotlib is imported only inside the functions that draw with it.

The page of a run, as ``find`` writes it::

    from gradpath.report import Chosen, CurvePoint, MethodRun, Report, evidence, write

    curve = [CurvePoint.of("top", result) for result in evaluate(model, select_many(scores, counts), task)]
    write(
        Report(
            title="ioi in smollm2", model="smollm2", task="ioi",
            runs=[MethodRun(scores, curve)],        # one for each method; name="..." tells equal ones apart
            chosen=Chosen(edges=1000, how="top"),   # the circuit asked for; run=0 is its method
            examples=evidence(task, result, model.tokenizer),   # of the result of the chosen circuit
            command="gradpath find --model smollm2 --task ioi",
            about={"seed": 0, "seconds": 41.2, "torch": torch.__version__},   # further facts to list
        ),
        "report.html",
    )

A circuit that was selected in a way the page cannot compute (anything but ``top``, ``greedy`` and ``signed``)
goes in as ``MethodRun(scores, curve, found=circuit)`` with ``Chosen(len(circuit), "saved")``; the points of
the curve whose ``how`` is the circuit's own are then its points.

``render(report)`` gives the page's text. ``show("circuit.json", "circuit.svg")`` draws a saved circuit and
goes by the suffix: .html, .svg, .png, .pdf, .dot or .graphml. ``plots.plot_result``, ``plot_scores`` and
``plot_circuit`` return matplotlib axes; ``cards.result_card``, ``scores_card`` and ``circuit_card`` return
the HTML that the objects show themselves with in a notebook.
"""

from gradpath.report.data import Chosen, CurvePoint, Example, MethodRun, Report, circuit_report, evidence
from gradpath.report.page import render, show, write

__all__ = [
    "Chosen",
    "CurvePoint",
    "Example",
    "MethodRun",
    "Report",
    "circuit_report",
    "evidence",
    "render",
    "show",
    "write",
]
