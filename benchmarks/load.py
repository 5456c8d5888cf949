"""Large inputs: many examples through attribution and evaluation, and GPT-2 XL's graph through the rest.

1. 10,000 and then 100,000 pairs of 4 to 24 tokens through ``attribute`` and ``evaluate`` on a tiny model. The
   process's memory is sampled while they run: ten times the examples should not need more.
2. The 2,235,025 edges of GPT-2 XL (48 layers of 25 heads, random scores) saved, loaded, selected from, pruned
   and made a page of.

Memory over examples is drawn to ``benchmarks/load.png``. Run it with ``make bench-load``.
"""

from __future__ import annotations

import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gradpath.attribution.attribute import attribute
from gradpath.circuit import load_circuit
from gradpath.evaluation import evaluate
from gradpath.graph import Graph, pruned
from gradpath.model.load import load_model
from gradpath.recipe import Recipe
from gradpath.report import Chosen, MethodRun, Report, write
from gradpath.scores import Scores, load_scores
from gradpath.selection import select
from gradpath.study.outcome import commit
from gradpath.tasks.task import Task

EXAMPLES, SHORTEST, LONGEST, BATCH, VOCAB, SEED = 100_000, 4, 24, 500, 101, 0
FIGURE = Path(__file__).with_name("load.png")
MIB = 2**20


class Numbers:
    """A tokenizer whose text is its token ids."""

    bos_token_id = None

    def __call__(self, texts: Any, add_special_tokens: bool = True) -> dict[str, Any]:
        if isinstance(texts, str):
            return {"input_ids": [0]}
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def main() -> None:
    print(f"commit {commit()}, torch {torch.__version__}, {torch.get_num_threads()} thread(s), seed {SEED}")
    samples = many_examples()
    draw(samples)
    many_edges()


def resident() -> float:
    """MiB that the process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB


@contextmanager
def sampled(samples: dict[str, list[float]], name: str) -> Iterator[None]:
    """Sample the memory ten times a second while the block runs."""
    held, done = [resident()], threading.Event()

    def sample() -> None:
        while not done.wait(0.1):
            held.append(resident())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    samples[name] = held


def timed(name: str, work: Callable[[], Any]) -> Any:
    cpu = time.process_time()
    done = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:44} {time.process_time() - cpu:7.1f} CPU s, peak {peak:6.0f} MiB so far", flush=True)
    return done


def many_examples() -> dict[str, list[float]]:
    torch.manual_seed(SEED)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": VOCAB}
    hf = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0, initializer_range=0.3))
    model = load_model(hf, tokenizer=Numbers(), bos=False)
    print(f"pairs of {SHORTEST} to {LONGEST} tokens, batches of {BATCH}, {model.graph.n_edges} edges")
    samples: dict[str, list[float]] = {}
    for examples in (EXAMPLES // 10, EXAMPLES):  # the first warms up, and is what the second is held against
        task = pairs(examples)

        with sampled(samples, "attribute"):
            scores = timed(
                f"attribute {examples:,}, eap-ig, 5 steps",
                lambda: attribute(model, task, "eap-ig", batch_size=BATCH),  # noqa: B023
            )
        circuit = select(scores, model.graph.n_edges // 2)
        with sampled(samples, "evaluate"):
            result = timed(f"evaluate {examples:,}", lambda: evaluate(model, circuit, task, batch_size=BATCH))  # noqa: B023
        timed(f"interval, 2,000 samples of {examples:,}", lambda: result.interval)  # noqa: B023
        for name, held in samples.items():
            print(f"{name} {examples:,}: at most {max(held):.0f} MiB held, {held[-1]:.0f} MiB at the end")
    return samples


def pairs(examples: int) -> Task:
    """Random prompts of mixed length; a pair differs in one token, anywhere."""
    draw = random.Random(SEED)
    clean, corrupted = [], []
    for _ in range(examples):
        ids = [draw.randrange(VOCAB) for _ in range(draw.randint(SHORTEST, LONGEST))]
        other = list(ids)
        at = draw.randrange(len(ids))
        other[at] = (ids[at] + draw.randrange(1, VOCAB)) % VOCAB
        clean.append(" ".join(map(str, ids)))
        corrupted.append(" ".join(map(str, other)))
    generator = torch.Generator().manual_seed(SEED)
    right, apart = (torch.randint(low, VOCAB, (examples,), generator=generator) for low in (0, 1))
    labels = torch.stack([right, (right + apart) % VOCAB], 1)  # the two answers differ
    return Task(clean, corrupted, labels)


def draw(samples: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    for name, held in samples.items():
        axes.plot([EXAMPLES * (i + 1) / len(held) for i in range(len(held))], held, label=name)
    axes.set(xlabel="examples done", ylabel="memory held (MiB)", ylim=(0, None))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(FIGURE, dpi=150)


def many_edges() -> None:
    graph = Graph(48, 25)
    generator = torch.Generator().manual_seed(SEED)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=generator) * graph.mask
    recipe = Recipe(model="random", task="none", method="random", steps=1)
    scores, n = Scores(graph, values, recipe), graph.n_edges // 100
    print(f"{graph.n_edges:,} edges, circuits of {n:,}; held before: {resident():.0f} MiB")
    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder, "scores.safetensors"), Path(folder, "circuit.json")
        timed("save the scores", lambda: scores.save(file))
        timed("load the scores", lambda: load_scores(file))
        for how in ("top", "greedy"):
            circuit = timed(f"select and prune, {how}", lambda how=how: select(scores, n, selection=how))
        timed("prune all edges", lambda: pruned(graph, graph.mask))
        timed("select all edges, greedy", lambda: select(scores, graph.n_edges, selection="greedy"))
        timed("save the circuit", lambda: circuit.save(small))
        timed("load the circuit", lambda: load_circuit(small))
        page = Report("random", "random", "none", [MethodRun(scores, [])], Chosen(n, "top"))
        timed("write the page", lambda: write(page, Path(folder, "report.html")))
        sizes = {name.name: name.stat().st_size / MIB for name in Path(folder).iterdir()}
        print(", ".join(f"{name} {size:.1f} MiB" for name, size in sorted(sizes.items())))


if __name__ == "__main__":
    main()
