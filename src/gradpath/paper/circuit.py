"""The drawing of the Greater-Than circuit at 99.9% sparsity, found by EAP-GP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gradpath.circuit import Circuit
from gradpath.formats.edges import dot
from gradpath.grid.bench import Bench
from gradpath.grid.experiment import Column, Experiment, Outcome, nfs, table
from gradpath.grid.faithfulness import READING, circuit_row
from gradpath.grid.jobs import CircuitJob, Job
from gradpath.grid.request import MethodSpec
from gradpath.report.plots import draw_on, inches
from gradpath.report.style import INK, method_title, save, task_title
from gradpath.runtime.files import write_atomically
from gradpath.selection.ranking import edge_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPARSITY = 0.999
COLUMNS: list[Column] = [
    ("task, selection", lambda row: f"{task_title(row['task'])}, {row['how']}"),
    ("edges asked", lambda row: f"{row['edges_asked']:,}"),
    ("edges left", lambda row: f"{row['edges_kept']:,}"),
    ("NFS [95%]", nfs),
    ("error", lambda row: f"{row['error']:.3f}"),
]


def _choices(bench: Bench) -> tuple[tuple[str, ...], MethodSpec, float]:
    """The tasks, the method (EAP-GP, or the first if that was not requested) and the sparsity."""
    request = bench.request
    method = next((method for method in request.methods if method.name == "eap-gp"), request.methods[0])
    tasks = ("greater-than",) if request.tasks is None else request.tasks
    return tasks, method, request.sparsities[0] if request.sparsities else SPARSITY


def jobs(bench: Bench) -> list[Job]:
    tasks, method, sparsity = _choices(bench)
    return [CircuitJob(task, (method,), bench.request.hows, (bench.edges(sparsity),)) for task in tasks]


def outcome(bench: Bench) -> Outcome:
    tasks, method, sparsity = _choices(bench)
    rows = [circuit_row(bench, task, method, how, sparsity) for task in tasks for how in bench.request.hows]
    circuits = {task: _circuit(bench, task) for task in tasks}
    notes = [
        f"Drawn for {task_title(task)}: {circuit.about['selection']['how']}, {len(circuit)} edges."
        if len(circuit)
        else f"Not drawn for {task_title(task)}: no edge is left after pruning. Ask for a lower sparsity."
        for task, circuit in circuits.items()
    ]
    return Outcome(
        name="circuit",
        title=f"Circuits of {bench.title} at {100 * sparsity:.4g}% sparsity, found by {method_title(method.label)}",
        rows=rows,
        text=table(COLUMNS, rows),
        notes=(*notes, READING),
        files=lambda folder: [file for item in circuits.items() for file in _write(bench, folder, *item)],
    )


def _circuit(bench: Bench, task: str) -> Circuit:
    """The circuit of the first selection that leaves an edge: top-n at 99.9% is often pruned to nothing."""
    _, method, sparsity = _choices(bench)
    scores = bench.scores(task, method)
    counts = [edge_count(scores.n_edges, None, sparsity)]
    circuits = [bench.circuits(scores, task, how, counts)[0] for how in bench.request.hows]
    return next((circuit for circuit in circuits if len(circuit)), circuits[0])


def _write(bench: Bench, folder: Path, task: str, circuit: Circuit) -> list[Path]:
    """Write the circuit as JSON and, if it has edges, as pictures."""
    stem = folder / f"circuit-{task}"
    json_file, dot_file = (folder / f"{stem.name}.{suffix}" for suffix in ("json", "dot"))
    circuit.save(json_file)
    if not len(circuit):
        return [json_file]
    pictures = save(_draw(bench, task, circuit), stem)
    write_atomically(dot_file, dot(circuit))
    return [json_file, *pictures, dot_file]


def _draw(bench: Bench, task: str, circuit: Circuit) -> Figure:
    from matplotlib.figure import Figure

    _, method, sparsity = _choices(bench)
    title = f"{task_title(task)} in {bench.title}: {len(circuit)} edges at {100 * sparsity:.4g}% sparsity\n"
    title += f"{method_title(method.label)}, {circuit.about['selection']['how']}, "
    title += f"on {len(bench.task(task, 'train'))} examples"
    width, height = inches(circuit.graph)
    total = height + 0.55  # inches, for the title
    figure = Figure(figsize=(max(width, 4.6), total))
    draw_on(circuit, figure.add_axes((0, 0, 1, height / total)))
    figure.suptitle(title, fontsize=9.5, color=INK, y=1 - 0.12 / total)
    return figure


EXPERIMENT = Experiment("circuit", jobs, outcome)
