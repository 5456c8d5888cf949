"""The tables of baselines, and of faithfulness and time at 97.5% sparsity.

Baselines are the metric of the full model on clean and on corrupted prompts: the delta+ and delta- of the paper's
faithfulness score, with bootstrap intervals over examples, and the numbers of pairs that the model's tokenizer kept and
dropped.

Seconds depend on the machine. So the table of times also has the number of forward and backward passes that a method
makes, and its CPU time as a multiple of one plain forward and backward pass of the same model over the same prompts.
The two times are measured alternately on one batch, and the smallest of each counts, so that other work on the machine
hardly changes the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import find_method
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate_many
from gradpath.evaluation.result import mean_and_interval
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.report.style import task_title
from gradpath.runtime import distributed
from gradpath.study.bench import Bench, Row
from gradpath.study.faithfulness import READING
from gradpath.study.outcome import Column, Experiment, Outcome, grouped, interval_column, nfs, percent, signed, table
from gradpath.study.spec import method_label, method_options, method_recipe
from gradpath.tasks import Task, encode

DOUBTFUL = (
    "The paper's numbers marked (?) cannot be what their columns say: Capital-Country and Hypernymy look like "
    "the probability and the logit difference swapped."
)
SIDES = ("clean", "corrupted", "difference")
SPARSITY = 0.975  # of the paper's table
REPEATS = 3


def baseline_outcome(bench: Bench) -> Outcome:
    rows = [_baseline_row(bench, name) for name in bench.study.task_names]
    has_paper = any("paper_clean" in row for row in rows)
    return Outcome(
        name="baselines",
        title=f"Clean and corrupted metric of {bench.title}",
        rows=rows,
        text=table([*BASELINE_COLUMNS, *(PAPER_BASELINE_COLUMNS if has_paper else ())], rows),
        notes=(DOUBTFUL,) if has_paper else (),
    )


def _baseline_row(bench: Bench, name: str) -> Row:
    recipe = bench.study.at(name)
    task = bench.task(recipe, "test")

    def compute() -> Mapping[str, Any]:
        [result] = evaluate_many(bench.model, [Circuit.from_edges(bench.model.graph, ())], task, bench.study.limits)
        clean, corrupted = result.clean_values, result.corrupted_values
        values = zip(SIDES, (clean, corrupted, clean - corrupted), strict=True)
        return {side: mean_and_interval(value) for side, value in values}

    cell = bench.store.measured({"kind": "baseline", **bench.task_key(recipe, "test")}, compute)
    row: Row = {"task": name, "metric": task.record.metric, "examples": len(task)}
    row["pairs_dropped"] = sum(drop["count"] for drop in task.facts.get("dropped", {}).values())
    for side in SIDES:
        row[side], row[f"{side}_low"], row[f"{side}_high"] = cell[side]
    if paper := bench.paper.baseline(name) if bench.paper else {}:
        row |= {f"paper_{side}": paper[side] for side in SIDES[:2]}
        row["paper_doubtful"] = bool(paper.get("doubtful"))
        row |= {f"{side}_minus_paper": row[side] - paper[side] for side in SIDES[:2]}
    return row


def _paper_columns(side: str) -> Sequence[Column]:
    def number(row: Row) -> str:
        return f"{row[f'paper_{side}']:g}" + " (?)" * row["paper_doubtful"] if f"paper_{side}" in row else ""

    def difference(row: Row) -> str:
        return f"{row[f'{side}_minus_paper']:+.3f}" if f"paper_{side}" in row else ""

    return (f"paper {side}", number), ("difference", difference)


BASELINE_COLUMNS: Sequence[Column] = [
    ("task", lambda row: task_title(row["task"])),
    ("metric", lambda row: row["metric"]),
    interval_column("clean [95%]", "clean", ".3f"),
    interval_column("corrupted [95%]", "corrupted", ".3f"),
    interval_column("clean - corrupted [95%]", "difference", ".3f"),
    ("pairs kept", lambda row: row["examples"]),
    ("dropped", lambda row: row["pairs_dropped"]),
]
PAPER_BASELINE_COLUMNS = [*_paper_columns("clean"), *_paper_columns("corrupted")]
BASELINES = Experiment("baselines", baseline_outcome)


RUNTIME_COLUMNS: list[Column] = [
    ("task, selection", lambda row: f"{task_title(row['task'])}, {row['selection']}"),
    ("method", lambda row: row["method"]),
    ("NFS [95%]", nfs),
    ("error", lambda row: f"{row['error']:.3f}"),
    ("edges", lambda row: f"{row['edges_kept']:,}"),
    ("forward", lambda row: row["forward_passes"]),
    ("backward", lambda row: row["backward_passes"]),
    ("CPU time / (forward + backward)", lambda row: f"{row['ratio']:.1f}"),
    ("CPU seconds", lambda row: f"{row['cpu_seconds']:.1f}"),
]
PAPER_RUNTIME_COLUMNS: list[Column] = [
    ("paper NFS", lambda row: percent(row.get("paper"))),
    ("difference", lambda row: signed(row.get("difference"))),
    ("paper seconds", lambda row: f"{row['paper_seconds']:g}" if "paper_seconds" in row else ""),
]


def _timing(bench: Bench, recipe: Recipe) -> Row:
    """The time that a method takes as a multiple of one plain forward and backward pass, and the batch timed.

    The batch is small enough for all methods and for plain passes over whole prompts.
    """
    train, limits, whole = bench.task(recipe, "train"), bench.study.limits, {True}
    pairs = encode(train, bench.model.tokenizer)
    for word in bench.study.methods:
        options = method_options(method_recipe(word))
        whole.add(find_method(method_recipe(word).method).whole(options))
    size = min(max(map(len, limits.attribution(bench.model, pairs, whole=x)[0])) for x in whole)
    key, batch = {"kind": "timing", "scores": bench.scores_key(recipe), "batch": size, "repeats": REPEATS}, train[:size]
    # CPU time, which other programs do not disturb; an accelerator has only wall time.
    clock = time.process_time if bench.model.device.type == "cpu" else time.perf_counter

    def seconds(work: Callable[[], object]) -> float:
        begin = clock()
        work()
        return clock() - begin

    def measure() -> dict[str, float]:
        times, options = [], method_options(recipe)
        for _ in range(REPEATS + 1):
            scoring = seconds(lambda: attribute(bench.model, batch, recipe.method, batch_size=len(batch), **options))
            times.append((scoring, seconds(lambda: forward_and_backward(bench.model, batch))))
        scoring, plain = map(min, zip(*times[1:], strict=True))  # the first run warms up
        return {"method": scoring, "plain": plain, "ratio": scoring / plain}

    # Other ranks would slow it down.
    cell = bench.store.measured(key, lambda: distributed.on_first_rank(measure))
    return {"ratio": cell["ratio"], "timed_on": size}


def forward_and_backward(model: Transformer, task: Task) -> None:
    """The unit of time: the metric of the clean prompts and its gradient at the input."""
    pairs = encode(task, model.tokenizer)
    for pairs_on_cpu in pairs.batches(len(pairs)):
        batch = pairs_on_cpu.to(model.device)
        with torch.enable_grad():
            x = model.embed(batch.clean).detach().requires_grad_()
            last = model.run(x).final_in[torch.arange(len(batch), device=model.device), batch.last]
            metric = task.metric(model.unembed(last), batch.labels).sum()
            torch.autograd.grad(metric, x)[0].cpu()


def runtime_outcome(bench: Bench) -> Outcome:
    rows = [row for task in bench.study.task_names for row in _runtime_rows(bench, task)]
    batch = " or ".join(map(str, sorted(grouped(rows, "timed_on"))))
    note = (
        "Ratio: CPU time of the scores over that of one plain forward and backward pass over the same "
        f"{batch} clean prompts, the smallest of {REPEATS} each. Passes are over the positions from the "
        "first differing token on; those of literal EAP-GP are over the whole prompt. Seconds: CPU time of the scores "
        "of all examples."
    )
    paper = (f"Paper: {bench.paper.source}; its seconds are on an NVIDIA A40.",) if bench.paper else ()
    paper_columns = PAPER_RUNTIME_COLUMNS if any("paper_seconds" in row for row in rows) else []
    return Outcome(
        name="runtime",
        title=f"Faithfulness and cost at {100 * SPARSITY:g}% sparsity in {bench.title}",
        rows=rows,
        text=table([*RUNTIME_COLUMNS, *paper_columns], rows),
        notes=(READING, note, *paper),
    )


def _runtime_rows(bench: Bench, task: str) -> list[Row]:
    recipes = list(bench.study.recipes(task, [("sparsity", SPARSITY)]))
    rows = bench.rows(recipes)
    for row, recipe in zip(rows, recipes, strict=True):
        price = bench.price(recipe)
        row |= {f"{kind}_passes": price[kind] for kind in ("forward", "backward")}
        row |= {**_timing(bench, recipe), "cpu_seconds": price["cpu_seconds"]}
        if paper := bench.paper.runtime(task, method_label(recipe)) if bench.paper else {}:
            row |= {"paper": paper["faithfulness"], "difference": row["faithfulness"] - paper["faithfulness"]}
            row["paper_seconds"] = paper["seconds"]
    return rows


RUNTIME = Experiment("runtime", runtime_outcome)
