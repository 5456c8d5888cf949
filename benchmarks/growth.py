"""How cost and memory grow: one line per question, over at least four sizes, as a table and a plot.

A GPT-2 of 6 layers, 8 heads, 256 wide, random weights, prompts of 24 tokens. The lines by prompt length have 2
examples that differ at the second token, and the default batch. CPU time of one thread, best of
three; memory as the most that a fresh process held beyond what it held before. Written to
``benchmarks/growth.md`` and ``benchmarks/growth.png``. Run it with ``make bench-growth``.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gradpath.attribution.attribute import attribute
from gradpath.attribution.batch import BatchRuns
from gradpath.attribution.contraction import Reads, contract
from gradpath.evaluation import evaluate
from gradpath.model.families import convert
from gradpath.model.transformer import Transformer
from gradpath.selection import select
from gradpath.study.outcome import commit
from gradpath.tasks.task import Task, encode

LENGTH, VOCAB, BATCH = 24, 1000, 10
HERE = Path(__file__).parent


def model() -> Transformer:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=6, n_head=8, n_embd=256, vocab_size=VOCAB, bos_token_id=0, eos_token_id=0, n_positions=2048
    )
    return convert(GPT2LMHeadModel(config).eval().requires_grad_(False))


def prompts(examples: int, suffix: int = 8, length: int = LENGTH) -> Task:
    clean = torch.randint(0, VOCAB, (examples, length))
    corrupted = clean.clone()
    corrupted[:, length - suffix] = (clean[:, length - suffix] + 1) % VOCAB
    return Task(clean, corrupted, torch.randint(0, VOCAB, (examples, 2)))


def score(m: Transformer, task: Task, steps: int = 5) -> object:
    return attribute(m, task, "eap-ig", steps=steps, batch_size=BATCH)


def score_long(m: Transformer, length: int) -> object:
    return attribute(m, prompts(2, length - 1, length), "eap-ig")


def circuits(m: Transformer, task: Task, number: int) -> object:
    circuit = select(attribute(m, task, "eap", batch_size=BATCH), sparsity=0.95)
    return evaluate(m, [circuit] * number, task, batch_size=BATCH)


def contraction(m: Transformer, points: int) -> Callable[[], object]:
    """The contraction alone, for gradients of ``points`` points."""
    task = prompts(BATCH)
    runs = BatchRuns(m, encode(task, None), task.metric, whole=False)
    writes, reads = runs.writes, Reads()
    for _ in range(points):
        reads.add(m, runs.clean.run, runs.metric_of(runs.clean.final))
    return lambda: contract(m, writes, reads)


# The question, its sizes, and what is run for each.
TIMES: dict[str, tuple[list[int], Callable[[Transformer, int], Callable[[], object]]]] = {
    "CPU s by examples": ([10, 20, 40, 80], lambda m, n: partial(score, m, prompts(n))),
    "CPU s by suffix length": ([3, 6, 12, 23], lambda m, n: partial(score, m, prompts(20, n))),
    "CPU s of scoring by k": ([1, 2, 4, 8], contraction),
    "CPU s by prompt length": ([256, 512, 1024, 2048], lambda m, n: partial(score_long, m, n)),
}
MEMORY: dict[str, tuple[list[int], Callable[[Transformer, int], object]]] = {
    "MB by examples": ([20, 40, 80, 160], lambda m, n: score(m, prompts(n))),
    "MB by k": ([10, 20, 40, 80], lambda m, n: score(m, prompts(20), n)),
    "MB by prompt length": ([256, 512, 1024, 2048], score_long),
    "MB by circuits": ([10, 20, 40, 80], lambda m, n: circuits(m, prompts(20), n)),
}


def main() -> None:
    torch.set_num_threads(1)
    m = model()
    table = {name: [(n, best(make(m, n))) for n in sizes] for name, (sizes, make) in TIMES.items()}
    for name, (sizes, _) in MEMORY.items():
        table[name] = [(n, peak_in_a_fresh_process(name, n)) for n in sizes]
    lines = ["| question | " + " | ".join(["size: value"] * 4) + " | last / first |", "|---" * 6 + "|"]
    for name, points in table.items():
        cells = [f"{n}: {value:.3g}" for n, value in points]
        lines.append(f"| {name} | {' | '.join(cells)} | {points[-1][1] / points[0][1]:.2f} |")
    text = "\n".join(lines)
    print(text)
    about = f"{(__doc__ or '').strip()}\n\nSeed 0, commit {commit()}, torch {torch.__version__}."
    (HERE / "growth.md").write_text(f"{about}\n\n{text}\n")
    plot(table)


def best(work: Callable[[], object]) -> float:
    turns = []
    for _ in range(4):  # the first one warms up
        begin = time.process_time()
        work()
        turns.append(time.process_time() - begin)
    return min(turns[1:])


def peak_in_a_fresh_process(name: str, size: int) -> float:
    done = subprocess.run([sys.executable, __file__, name, str(size)], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def peak(name: str, size: int) -> float:
    """MB held at most during the work, beyond what is held before it."""
    torch.set_num_threads(1)
    m = model()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = held("VmRSS")
    MEMORY[name][1](m, size)
    return held("VmHWM") - before


def held(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def plot(table: dict[str, list[tuple[int, float]]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(14, 6), constrained_layout=True)
    for ax, (name, points) in zip(axes.flat, table.items(), strict=True):
        ax.plot(*zip(*points, strict=True), marker="o")
        unit, _, by = name.partition(" by ")
        ax.set(title=name, xlabel=by, ylabel=unit)
        ax.set_ylim(bottom=0)
        ax.set_xlim(left=0)
        ax.grid(alpha=0.3)
    figure.suptitle("Growth: GPT-2 of 6 layers x 8 heads, 24 tokens, batches of 10, EAP-IG, one thread")
    figure.savefig(HERE / "growth.png", dpi=120)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(peak(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
