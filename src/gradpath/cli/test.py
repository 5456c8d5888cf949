"""``gradpath test``: should a saved circuit be believed?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gradpath.cli import options as opt
from gradpath.cli.progress import Screen, print_result
from gradpath.cli.saved import open_circuit, saved_options
from gradpath.errors import UsageError
from gradpath.runtime import distributed


@click.command(name="test")
@click.argument("circuit_file", type=opt.CIRCUIT, metavar="CIRCUIT.json")
@click.option(
    "--out", type=opt.FILE, metavar="PAGE.html", help="Write the report of the circuit, with the verdict at the top."
)
@saved_options("Examples to test on.")
def command(circuit_file: str | Path, out: Path | None, as_json: bool, **given: Any) -> None:
    """Test a saved circuit: is it better than chance, equivalent to the model, necessary, minimal, stable?

    \b
    gradpath test out/ioi/circuit.json
    gradpath test out/ioi/circuit.json --examples 50 --json
    gradpath test out/ioi/circuit.json --out out/ioi/verdict.html
    """
    from gradpath.report import verdict_report, write
    from gradpath.tasks.builtin import REWORDED
    from gradpath.verdict import test

    if out is not None and out.suffix.lower() != ".html":
        raise UsageError(f"the verdict is written as an HTML page: --out has to end in .html, got {out.name}.")
    saved = open_circuit(circuit_file, given)
    data, seed = saved.options.data, saved.options.seed
    circuit = replace(saved.circuit, about={**saved.circuit.about, "ablation": saved.ablation})
    with Screen().waiting(f"testing {len(circuit):,} edges on {len(saved.task)} examples") as watch:
        verdict = test(
            saved.model,
            circuit,
            saved.task,
            found_on=saved.draw("train", seed),
            draws=[] if data else [saved.draw("train", seed + 1)],
            reworded=saved.draw(REWORDED, seed) if saved.has_templates else None,
            seed=seed,
            batch_size=saved.limits.batch_size,
            memory=saved.limits.memory,
            watch=watch,
        )
    facts = {"circuit_file": str(circuit_file), "seed": seed, "split": saved.options.split}
    if out is not None:
        distributed.on_first_rank(lambda: write(verdict_report(circuit, verdict, opt.command_line()), out))
    wrote = "" if out is None else f"\nOpen {out} in a browser."
    print_result({**facts, **verdict.to_json()} if as_json else f"{circuit_file}:\n{verdict!r}{wrote}")
