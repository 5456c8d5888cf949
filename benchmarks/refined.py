"""How faithful the circuits of ``refined`` are, and what they cost: before and after a change of it.

    python benchmarks/refined.py > before.json
    python benchmarks/refined.py --against before.json > now.json      prints the tables, in Markdown, to stderr

SmolLM2, the six built-in tasks, one thread. EAP-IG scores the examples, one order of ``refined`` gives the circuits of
all sizes down to 20 edges, and those of three sizes are measured on 100 held-out examples. Differences are paired: the
same examples are drawn on both sides of the bootstrap. Rounding alone moves the circuit of one task, so the means over
tasks and seeds say more than a row. The interval "over examples" holds for these circuits. To compare two versions of
the method, take the one "over runs", each a task and a seed: it includes the change of a circuit by chance.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gradpath as gp
from gradpath.attribution.attribute import attribute_at_steps
from gradpath.attribution.methods import find_method
from gradpath.evaluation.result import Cell, Difference, distance_difference, error_difference, mean_and_interval
from gradpath.model.transformer import Transformer
from gradpath.prepared import PreparedBatches
from gradpath.selection import rank
from gradpath.study.bench import cell_of
from gradpath.study.outcome import commit

TASKS = ("ioi", "sva", "gender-bias", "capital-country", "hypernymy", "greater-than")
SPARSITIES = (0.99, 0.975, 0.95)
SMALLEST, HELD_OUT = 20, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--examples", type=int, default=100, help="to attribute; default 100")
    parser.add_argument("--seeds", default="0", help="of the examples; default 0")
    parser.add_argument("--against", type=Path, metavar="FILE", help="what this script printed before the change")
    options = parser.parse_args()
    before = None if options.against is None else json.loads(options.against.read_text())
    torch.set_num_threads(1)
    model = gp.load_model("smollm2")
    now: dict[str, Any] = {"commit": commit(), "tasks": {}}
    for seed in map(int, options.seeds.split(",")):
        for name in options.tasks.split(","):
            found = now["tasks"][f"{name}, seed {seed}"] = measure(model, name, options.examples, seed)
            print(name, seed, {k: round(x, 1) for k, x in found["seconds"].items()}, file=sys.stderr, flush=True)
    print(json.dumps(now))
    if before is not None:
        print("\n".join(tables(before, now)), file=sys.stderr)


def measure(model: Transformer, name: str, examples: int, seed: int) -> dict[str, Any]:
    """CPU seconds of the attribution and of the selection, and the circuits' results on held-out examples."""
    task = gp.load_task(name, model, n=examples, seed=seed, split="train")
    held_out = gp.load_task(name, model, n=HELD_OUT, seed=seed, split="test")
    prepared = PreparedBatches(model, task)  # as ``find`` does
    begin = time.process_time()
    method = find_method("eap-ig")
    *_, scores = attribute_at_steps(prepared, method, method.options({}))
    scored = time.process_time()
    order = rank(scores, "refined", smallest=min(SMALLEST, scores.n_edges), prepared=prepared)
    seconds = {"eap-ig": scored - begin, "refined": time.process_time() - scored}
    circuits = [order.circuit(round((1 - sparsity) * scores.n_edges)) for sparsity in SPARSITIES]
    return {"seconds": seconds, "cells": [cell_of(result) for result in gp.evaluate(model, circuits, held_out)]}


def tables(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A table of faithfulness and error for each size, and one of times."""
    lines = [f"before: commit {before['commit']}; now: commit {now['commit']}"]
    names = [name for name in now["tasks"] if name in before["tasks"]]
    for i, sparsity in enumerate(SPARSITIES):
        lines += ["", f"| {sparsity:.1%} | NFS before | now | distance from 100% | error before | now | difference |"]
        lines.append("|---|" + 6 * "---:|")
        for name in names:
            old, new = (x["tasks"][name]["cells"][i] for x in (before, now))
            distance = shown(distance_difference([new], [old]), 100, 1)
            error = shown(error_difference([new], [old]), 1, 3)
            nfs, errors = (f"{old[key] * by:.{n}f} | {new[key] * by:.{n}f}" for key, by, n in SHOWN)
            lines.append(f"| {name} | {nfs} | {distance} | {errors} | {error} |")
        old_cells, new_cells = ([x["tasks"][name]["cells"][i] for name in names] for x in (before, now))
        mean = [sum(cell["error"] for cell in cells) / len(names) for cells in (old_cells, new_cells)]
        distance = shown(distance_difference(new_cells, old_cells), 100, 1)
        error = shown(error_difference(new_cells, old_cells), 1, 3)
        lines.append(f"| mean, over examples | | | {distance} | {mean[0]:.3f} | {mean[1]:.3f} | {error} |")
        distance, error = (
            shown(over_runs(difference, new_cells, old_cells), by, digits)
            for difference, by, digits in ((distance_difference, 100, 1), (error_difference, 1, 3))
        )
        lines.append(f"| mean, over runs | | | {distance} | | | {error} |")
    lines += ["", "| CPU seconds | EAP-IG | refined before | now | now / EAP-IG |", "|---|---:|---:|---:|---:|"]
    for name in names:
        old, new = (x["tasks"][name]["seconds"] for x in (before, now))
        ratio = new["refined"] / new["eap-ig"]
        lines.append(f"| {name} | {new['eap-ig']:.1f} | {old['refined']:.1f} | {new['refined']:.1f} | {ratio:.2f} |")
    return lines


SHOWN = (("faithfulness", 100, 1), ("error", 1, 3))


def over_runs(
    difference: Callable[[list[Cell], list[Cell]], Difference], new_cells: list[Cell], old_cells: list[Cell]
) -> Difference:
    """The mean difference of the runs, with its interval over runs instead of examples."""
    values = [difference([new], [old]).value for new, old in zip(new_cells, old_cells, strict=True)]
    return Difference(*mean_and_interval(torch.tensor(values)))


def shown(difference: Difference, by: float, digits: int) -> str:
    """A difference with its interval; bold where the interval excludes zero."""
    value, low, high = (f"{by * x:+.{digits}f}" for x in (difference.value, difference.low, difference.high))
    text = f"{value} [{low}, {high}]"
    return f"**{text}**" if difference.is_clear else text


if __name__ == "__main__":
    main()
