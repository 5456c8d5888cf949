"""The most memory that each method holds above the weights, GPT-2 small's shape, batches of 10.

Each method in a process of its own: what one has freed, the next would otherwise use. Run it with
``make bench-memory``.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from cost import BATCH, prompts
from gradpath.attribution.attribute import attribute
from gradpath.model.families import convert
from growth import held


def main() -> None:
    for method in ("eap", "eap-ig", "eap-gp"):
        command = [sys.executable, __file__, method]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{method}: {float(done.stdout.split()[-1]):.0f} MB")


def peak(method: str) -> float:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, task = convert(GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)), prompts()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = held("VmRSS")
    attribute(model, task, method, batch_size=BATCH)
    return held("VmHWM") - before


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(peak(sys.argv[1]))
    else:
        main()
