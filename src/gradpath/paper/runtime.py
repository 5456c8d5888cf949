"""The table of faithfulness and time at 97.5% sparsity.

Seconds on one machine say little about another, so beside them stand two things that carry over: the forward
and backward passes that a method makes, counted as they happen, and its CPU time as a multiple of one plain
forward and backward pass of the same model over the same prompts. The two times are taken in turns on one
batch and the smallest of each is kept, which is how a noisy machine is kept out of the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradpath.attribution.attribute import attribute
from gradpath.attribution.methods import find_method
from gradpath.grid.bench import Bench
from gradpath.grid.faithfulness import READING, circuit_row, fit
from gradpath.grid.jobs import Advance, CellJob, CircuitJob, Job, finished
from gradpath.grid.output import Outcome, markdown, percent, signed, with_interval
from gradpath.grid.request import MethodSpec, default_tasks
from gradpath.grid.runner import Experiment
from gradpath.grid.store import Key
from gradpath.model.transformer import Transformer
from gradpath.report.style import INK, colour, method_title, panels, task_title
from gradpath.runtime import distributed
from gradpath.tasks import Task, encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SPARSITY = 0.975
REPEATS = 3
Row = dict[str, Any]


def jobs(bench: Bench) -> list[Job]:
    planned: list[Job] = []
    n = bench.edges(SPARSITY)
    for task in default_tasks(bench.request):
        for method in bench.request.methods:
            planned.append(CircuitJob(task, (method,), bench.request.hows, (n,)))
            planned.append(_timing_job(bench, task, method))
    return planned


def _timing_key(bench: Bench, task: str, method: MethodSpec) -> Key:
    batch = _batch_to_time(bench, task)
    return {"kind": "timing", "scores": bench.scores_key(task, method), "batch": batch, "repeats": REPEATS}


def _batch_to_time(bench: Bench, task: str) -> int:
    """One batch that fits for all methods, and for the plain passes over the whole prompt."""
    asked, pairs = bench.request, encode(bench.task(task, "train"), bench.model.tokenizer)

    def fits(points: int, whole: bool) -> int:
        return asked.limits.batch(bench.model, pairs, points=points, whole=whole)

    methods = [fits(x.steps, find_method(x.name).whole(x.options)) for x in asked.methods]
    return min(*methods, fits(1, whole=True))


def _timing_job(bench: Bench, task: str, method: MethodSpec) -> CellJob:
    key = _timing_key(bench, task, method)
    some = bench.task(task, "train")[: key["batch"]]
    cost = len(some) * (method.cost + 2) * (REPEATS + 1)

    def compute(advance: Advance) -> Mapping[str, Any]:
        return distributed.on_first_rank(lambda: timed(advance))  # others would be in its way, and add nothing

    def timed(advance: Advance) -> dict[str, float]:
        def score() -> None:
            attribute(bench.model, some, method.name, batch_size=len(some), **method.options)

        def plain() -> None:
            forward_and_backward(bench.model, some)

        times = taken_in_turns([score, plain], clock_for(bench.model), lambda: advance(cost / (REPEATS + 1)))
        return {"method": times[0], "plain": times[1], "ratio": times[0] / times[1]}

    return CellJob(f"{task}: timing {method.label}", key, cost, compute)


def clock_for(model: Transformer) -> Callable[[], float]:
    """CPU time, which other programs do not disturb; on an accelerator, which has none, the wall's."""
    return time.process_time if model.device.type == "cpu" else time.perf_counter


def taken_in_turns(
    works: Sequence[Callable[[], None]], clock: Callable[[], float], tick: Callable[[], None]
) -> list[float]:
    """The smallest time of each work, all of them run once before and then in turns."""
    best = [float("inf")] * len(works)
    for turn in range(REPEATS + 1):
        for i, work in enumerate(works):
            begin = clock()
            work()
            if turn:  # the first turn warms up
                best[i] = min(best[i], clock() - begin)
        tick()
    return best


def forward_and_backward(model: Transformer, task: Task) -> None:
    """What times are compared with: the metric of the clean prompts and its gradient at the input."""
    pairs = encode(task, model.tokenizer)
    for batch in pairs.batches(len(pairs)):
        on = batch.to(model.device)
        with torch.enable_grad():
            x = model.embed(on.clean).detach().requires_grad_()
            last = model.run(x).final_in[torch.arange(len(on), device=model.device), on.last]
            metric = task.metric(model.unembed(last), on.labels).sum()
            torch.autograd.grad(metric, x)[0].cpu()


def outcome(bench: Bench) -> Outcome:
    rows = [
        _row(bench, task, method, how)
        for task in default_tasks(bench.request)
        for how in bench.request.hows
        for method in bench.request.methods
    ]
    batch = " or ".join(str(size) for size in sorted({row["timed_on"] for row in rows}))
    note = (
        "Ratio: CPU time of the scores over that of one plain forward and backward pass over the same "
        f"{batch} clean prompts, the smallest of {REPEATS} each. Passes are over the positions from the "
        "first differing token on; those of EAP-GP take in the whole prompt. Seconds: CPU time of the scores "
        "of all examples."
    )
    beside = (f"Paper: {bench.paper.source}; its seconds are on an NVIDIA A40.",) if bench.paper else ()
    return Outcome(
        name="runtime",
        title=f"Faithfulness and cost at {100 * SPARSITY:g}% sparsity in {bench.title}",
        rows=rows,
        text=_text(rows),
        figures={"runtime": lambda: _draw(rows, bench.title)},
        notes=(READING, note, *beside),
    )


def _row(bench: Bench, task: str, method: MethodSpec, how: str) -> Row:
    row = circuit_row(bench, task, method, how, SPARSITY)
    scores = bench.scores(task, method)
    timing = finished(bench, _timing_key(bench, task, method))
    row |= {f"{kind}_passes": scores.about["passes"][kind] for kind in ("forward", "backward")}
    row |= {"ratio": timing["ratio"], "timed_on": _timing_key(bench, task, method)["batch"]}
    row["cpu_seconds"] = scores.about["cpu_seconds"]
    theirs = bench.paper.runtime(task, method.label) if bench.paper else {}
    if theirs:
        row |= {"paper": theirs["faithfulness"], "difference": row["faithfulness"] - theirs["faithfulness"]}
        row["paper_seconds"] = theirs["seconds"]
    return row


def _text(rows: Sequence[Row]) -> str:
    beside = any("paper_seconds" in row for row in rows)
    headings = ["task, selection", "method", "NFS [95%]", "error", "edges", "forward", "backward"]
    headings += ["CPU time / (forward + backward)", "CPU seconds"]
    headings += ["paper NFS", "difference", "paper seconds"] if beside else []
    lines = []
    for row in rows:
        interval = (row["faithfulness_low"], row["faithfulness_high"])
        line = [f"{task_title(row['task'])}, {row['how']}", row["method"]]
        line += [with_interval(row["faithfulness"], interval), f"{row['error']:.3f}", f"{row['edges_kept']:,}"]
        line += [str(row["forward_passes"]), str(row["backward_passes"]), f"{row['ratio']:.1f}"]
        line.append(f"{row['cpu_seconds']:.1f}")
        if beside:
            seconds = row.get("paper_seconds")
            line += [percent(row.get("paper")), signed(row.get("difference"))]
            line.append("" if seconds is None else f"{seconds:g}")
        lines.append(line)
    return markdown(headings, lines)


def _draw(rows: Sequence[Row], model: str) -> Figure:
    """Faithfulness against cost: one point per task and method, of the first selection."""
    from matplotlib.lines import Line2D

    figure, (ax, *_) = panels(1, 1, (7.4, 4.4))
    how = rows[0]["how"]
    own = [row for row in rows if row["how"] == how]
    labels = list(dict.fromkeys(row["method"] for row in own))
    tasks = list(dict.fromkeys(row["task"] for row in own))
    marks = dict(zip(tasks, ("o", "s", "^", "D", "v", "P", "X", "*") * 4, strict=False))
    for row in own:
        y = 100 * row["faithfulness"]
        low, high = y - 100 * row["faithfulness_low"], 100 * row["faithfulness_high"] - y
        style = {"color": colour(row["method"], labels), "marker": marks[row["task"]]}
        ax.errorbar(row["ratio"], y, [[max(low, 0)], [max(high, 0)]], elinewidth=0.8, markersize=6, alpha=0.9, **style)
    ax.axhline(100, color=INK, linewidth=0.8, linestyle=":")
    ax.set_xlabel("CPU time (multiples of one forward + backward pass)")
    ax.set_ylabel("NFS (% of clean - corrupted), 95% interval")
    title = f"Faithfulness at {100 * SPARSITY:g}% sparsity ({how}) against cost in {model}"
    figure.suptitle(title, fontsize=10.5, color=INK)
    handles = [Line2D([], [], color=colour(x, labels), linewidth=3, label=method_title(x)) for x in labels]
    for task in tasks:
        name = f"{task_title(task)} ({next(row['examples'] for row in own if row['task'] == task)} examples)"
        handles.append(Line2D([], [], color=INK, marker=marks[task], linestyle="", label=name))
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
    fit(ax, own)
    return figure


EXPERIMENT = Experiment("runtime", jobs, outcome)
