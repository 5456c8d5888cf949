"""The drawing of the Greater-Than circuit at 99.9% sparsity, found by EAP-GP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradpath.circuit import Circuit
from gradpath.formats.graphs import dot
from gradpath.grid.bench import Bench
from gradpath.grid.faithfulness import READING, circuit_row
from gradpath.grid.jobs import CircuitJob, Job
from gradpath.grid.output import Outcome, markdown, with_interval
from gradpath.grid.request import MethodSpec, default_tasks
from gradpath.grid.runner import Experiment
from gradpath.report.style import INK, method_title, save, task_title
from gradpath.runtime.files import write_atomically
from gradpath.selection.ranking import edge_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SPARSITY = 0.999


def _method(bench: Bench) -> MethodSpec:
    """EAP-GP, as in the paper; another if only others were asked for."""
    asked = bench.request.methods
    return next((method for method in asked if method.name == "eap-gp"), asked[0])


def _sparsity(bench: Bench) -> float:
    return bench.request.sparsities[0] if bench.request.sparsities else SPARSITY


def jobs(bench: Bench) -> list[Job]:
    count = (bench.edges(_sparsity(bench)),)
    tasks = default_tasks(bench.request, ["greater-than"])
    return [CircuitJob(task, (_method(bench),), bench.request.hows, count) for task in tasks]


def outcome(bench: Bench) -> Outcome:
    tasks, method, sparsity = default_tasks(bench.request, ["greater-than"]), _method(bench), _sparsity(bench)
    rows = [circuit_row(bench, task, method, how, sparsity) for task in tasks for how in bench.request.hows]
    lines = [
        [
            f"{task_title(row['task'])}, {row['how']}",
            f"{row['edges_asked']:,}",
            f"{row['edges_kept']:,}",
            with_interval(row["faithfulness"], (row["faithfulness_low"], row["faithfulness_high"])),
            f"{row['error']:.3f}",
        ]
        for row in rows
    ]
    title = f"Circuits of {bench.title} at {100 * sparsity:.4g}% sparsity, found by {method_title(method.label)}"
    headings = ["task, selection", "edges asked", "edges left", "NFS [95%]", "error"]
    circuits = {task: _drawn(bench, task, method, sparsity) for task in tasks}
    notes = [
        f"Drawn for {task_title(task)}: {circuit.about['selection']['how']}, {len(circuit)} edges."
        if len(circuit)
        else f"Not drawn for {task_title(task)}: no edge is left after pruning. Ask for a lower sparsity."
        for task, circuit in circuits.items()
    ]
    return Outcome(
        name="circuit",
        title=title,
        rows=rows,
        text=markdown(headings, lines),
        notes=(*notes, READING),
        files=lambda folder: [file for x in circuits.items() for file in _write(folder, *x, _heading(bench, *x))],
    )


def _heading(bench: Bench, task: str, circuit: Circuit) -> str:
    """What the picture is of."""
    how = circuit.about["selection"]["how"]
    found = f"{method_title(_method(bench).label)}, {how}, on {len(bench.task(task, 'train'))} examples"
    what = f"{task_title(task)} in {bench.title}: {len(circuit)} edges at {100 * _sparsity(bench):.4g}% sparsity"
    return f"{what}\n{found}"


def _drawn(bench: Bench, task: str, method: MethodSpec, sparsity: float) -> Circuit:
    """The circuit of the first selection that leaves an edge: top-n at 99.9% is often pruned to nothing."""
    scores = bench.scores(task, method)
    counts = [edge_count(scores.n_edges, None, sparsity)]
    found = [bench.circuits(scores, task, how, counts)[0] for how in bench.request.hows]
    return next((circuit for circuit in found if len(circuit)), found[0])


def _write(folder: Path, task: str, circuit: Circuit, title: str) -> list[Path]:
    """The circuit as JSON, and as pictures if there is anything to see."""
    stem = f"circuit-{task}"
    saved = folder / f"{stem}.json"
    circuit.save(saved)
    if not len(circuit):
        return [saved]
    pictures = save(_picture(circuit, title), folder / stem)
    graph = folder / f"{stem}.dot"
    write_atomically(graph, dot(circuit))
    return [saved, *pictures, graph]


def _picture(circuit: Circuit, title: str) -> Figure:
    """The circuit under a title."""
    from matplotlib.figure import Figure

    # Drawing belongs to the layer above, so it is imported where it is needed.
    from gradpath.report.drawing import draw_on, inches

    width, height = inches(circuit.graph)
    room = 0.55  # inches, for the title
    width = max(width, 4.6)
    figure = Figure(figsize=(width, height + room))
    draw_on(circuit, figure.add_axes((0, 0, 1, height / (height + room))))
    figure.suptitle(title, fontsize=9.5, color=INK, y=1 - 0.12 / (height + room))
    return figure


EXPERIMENT = Experiment("circuit", jobs, outcome)
