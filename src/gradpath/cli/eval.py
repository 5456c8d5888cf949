"""``gradpath eval``: measure a saved circuit again, on its own model and task or on others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import lines_of, numbers_of, print_result
from gradpath.cli.saved import open_circuit, saved_options


@click.command(name="eval")
@click.argument("circuit_file", type=opt.CIRCUIT, metavar="CIRCUIT.json")
@saved_options("Examples to measure on.")
def command(circuit_file: str | Path, as_json: bool, **given: Any) -> None:
    """Run a saved circuit with every other edge corrupted and measure what is left.

    \b
    gradpath eval out/ioi/circuit.json
    gradpath eval out/ioi/circuit.json --data pairs.csv --json
    """
    from gradpath.evaluation.evaluate import evaluate

    begin, saved = time.monotonic(), open_circuit(circuit_file, given)
    result = saved.run(evaluate, "measuring the circuit")
    about = saved.circuit.about
    summary = {
        "version": about.get("version"),
        "circuit_file": str(circuit_file),
        "model": saved.model.name,
        "task": saved.task.name,
        "method": about.get("method"),
        "steps": about.get("steps"),
        "ablation": saved.ablation,
        "metric": saved.task.about["metric"],
        "seed": saved.options.seed,
        "split": saved.options.split,
        "examples": len(saved.task),
        **numbers_of(saved.circuit.graph, result, max(1, len(saved.circuit.spans))),
        "seconds": round(time.monotonic() - begin, 2),
    }
    print_result(summary if as_json else _text(summary))


def _text(s: dict[str, Any]) -> str:
    where = f"{s['examples']} examples of {s['task']} ({s['split']}) in {s['model']}"
    return "\n".join([f"{s['circuit_file']} on {where}:", *lines_of(s)])
