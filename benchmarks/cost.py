"""What attribution and evaluation cost, as multiples of one forward + backward pass of transformers.

GPT-2 small's shape with random weights, 20 examples of 15 tokens that differ at position 10, batches of
10, CPU time of one thread. All contenders take turns in one process and the fastest turn counts, so that a
busy machine disturbs the ratios little. Run it with ``make bench``.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.evaluation.evaluate import evaluate
from gradpath.model.families import convert
from gradpath.selection import select
from gradpath.tasks.task import Task

EXAMPLES, LENGTH, DIFFERS, BATCH, TURNS = 20, 15, 10, 10, 5
LIMITS = {"eap": 1.4, "eap-ig (5)": 2.5, "eap-gp (5)": 6.5, "evaluation": 0.25, "curve of 20": 4.0}


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    model, task = convert(original), prompts()
    scores = attribute(model, task, "eap", batch_size=BATCH)
    circuit = select(scores, sparsity=0.975)
    curve = [select(scores, sparsity=1 - kept / 1000) for kept in torch.linspace(1, 31, 20).tolist()]

    def run(circuits: list[Circuit]) -> Callable[[], object]:
        return lambda: evaluate(model, circuits, task, batch_size=BATCH)

    seconds = fastest(
        {
            "unit": lambda: forward_backward(original, task),
            "eap": lambda: attribute(model, task, "eap", batch_size=BATCH),
            "eap-ig (5)": lambda: attribute(model, task, "eap-ig", batch_size=BATCH),
            "eap-gp (5)": lambda: attribute(model, task, "eap-gp", batch_size=BATCH),
            "1 circuit": run([circuit]),
            "21 circuits": run([circuit] * 21),
            "curve of 20": run(curve),
        }
    )
    unit = seconds["unit"]
    ratios = {name: seconds[name] / unit for name in ("eap", "eap-ig (5)", "eap-gp (5)")}
    ratios["evaluation"] = (seconds["21 circuits"] - seconds["1 circuit"]) / 20 / unit
    ratios["set-up"] = seconds["1 circuit"] / unit - ratios["evaluation"]
    ratios["curve of 20"] = seconds["curve of 20"] / unit  # 96.9% to 99.9% sparsity, set-up included
    print(f"one transformers forward + backward: {unit / EXAMPLES:.4f} CPU s an example (the unit)")
    print(f"{'':14}{'units':>8}{'limit':>8}")
    for name, ratio in ratios.items():
        print(f"{name:14}{ratio:8.2f}{LIMITS.get(name, float('nan')):8.2f}")
    return int(any(ratios[name] > limit for name, limit in LIMITS.items()))


def prompts() -> Task:
    clean = torch.randint(0, 50_000, (EXAMPLES, LENGTH))
    corrupted = clean.clone()
    corrupted[:, DIFFERS] = torch.randint(0, 50_000, (EXAMPLES,))
    return Task(clean, corrupted, torch.randint(0, 50_000, (EXAMPLES, 2)))


def forward_backward(model: GPT2LMHeadModel, task: Task) -> None:
    """The unit: logits at the last position, and the metric's gradient at the inputs."""
    for at in range(0, EXAMPLES, BATCH):
        ids, labels = task.clean[at : at + BATCH], task.labels[at : at + BATCH]
        embeddings = model.transformer.wte(ids).requires_grad_()
        logits = model(inputs_embeds=embeddings, logits_to_keep=1).logits[:, -1]
        torch.autograd.grad(task.metric(logits, labels).sum(), embeddings)


def fastest(contenders: dict[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """CPU seconds of each contender's best turn."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(turns):
        for name, contender in contenders.items():
            begin = time.process_time()
            contender()
            best[name] = min(best[name], time.process_time() - begin)
    return best


if __name__ == "__main__":
    sys.exit(main())
