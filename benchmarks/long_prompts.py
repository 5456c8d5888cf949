"""Time and memory of long prompts: EAP-IG on SmolLM2, and the evaluation of one circuit of its scores.

Random tokens that differ at the fifth, seed 0, one thread, each line in a process of its own. Memory is the most that
the whole process ever held, weights included. Run it with ``make bench-long``, or for one line
``python benchmarks/long_prompts.py EXAMPLES TOKENS``.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from gradpath.attribution.attribute import attribute
from gradpath.evaluation import evaluate
from gradpath.model.load import load_model
from gradpath.model.transformer import Transformer
from gradpath.selection import select
from gradpath.tasks.task import Task
from growth import held

LINES = ((1, 256), (2, 512), (1, 2048))
DIFFERS, EDGES = 4, 2000


def main() -> None:
    for examples, length in LINES:
        subprocess.run([sys.executable, __file__, str(examples), str(length)], check=True)


def measure(model: Transformer, examples: int, length: int) -> None:
    """Print what one attribution and one evaluation took."""
    torch.manual_seed(0)
    vocabulary = len(model.embedding)
    clean = torch.randint(0, vocabulary, (examples, length))
    corrupted = clean.clone()
    corrupted[:, DIFFERS] = (clean[:, DIFFERS] + 1) % vocabulary
    task = Task(clean, corrupted, torch.randint(0, vocabulary, (examples, 2)))
    begin = time.process_time()
    scores = attribute(model, task, "eap-ig")
    scored, memory = time.process_time(), held("VmHWM") / 1000
    evaluate(model, select(scores, min(EDGES, scores.n_edges), selection="top"), task)
    print(
        f"{examples} of {length} tokens: eap-ig {scored - begin:.1f} CPU s, {memory:.1f} GB; with evaluation "
        f"{time.process_time() - scored:.1f} CPU s more, {held('VmHWM') / 1000:.1f} GB"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        measure(load_model("smollm2"), *map(int, sys.argv[1:]))
    else:
        main()
