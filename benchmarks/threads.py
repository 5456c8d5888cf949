"""One and two threads, on a machine as quiet as it is and on one where every core has other work.

EAP-IG on GPT-2 small's shape with random weights, 10 examples of 15 tokens that differ at position 10. Every cell is a
process of its own, because OpenMP reads its settings once: ``spin`` is its default, in which threads that wait
use up their cores, ``sleep`` is what ``gradpath`` sets. The busy machine has one process per core that multiplies
matrices, for two minutes at most. The machine counts as quiet if its load was below a half when the benchmark began.
Run it with ``make bench-threads``; it takes about a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

CELLS = [("1", "sleep"), ("2", "spin"), ("2", "sleep")]
POLICY = {"spin": "active", "sleep": "passive"}
WORK = """
import time, torch
torch.set_num_threads(1)
x, end = torch.randn(500, 500), time.monotonic() + 120
while time.monotonic() < end:
    x @ x
"""


def main() -> None:
    quiet = os.getloadavg()[0] < 0.5
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'threads':>8}{'waiting':>9}{'machine':>9}{'seconds':>9}{'CPU s':>8}")
    for busy in (False, True):
        others = [subprocess.Popen([sys.executable, "-c", WORK]) for _ in range(os.cpu_count() or 1)] if busy else []
        machine = "busy" if busy else "quiet" if quiet else "as it is"
        try:
            for threads, waiting in CELLS:
                seconds, cpu = cell(threads, waiting)
                print(f"{threads:>8}{waiting:>9}{machine:>9}{seconds:9.1f}{cpu:8.1f}", flush=True)
        finally:
            for other in others:
                other.kill()


def cell(threads: str, waiting: str) -> list[float]:
    settings = {"OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": POLICY[waiting]}
    command = [sys.executable, __file__, "cell"]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()[-2:]]


def measure() -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from cost import prompts
    from gradpath.attribution.attribute import attribute
    from gradpath.model.families import convert

    torch.manual_seed(0)
    model, task = convert(GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)), prompts()[:10]
    attribute(model, task, "eap")  # warms up
    begin, cpu = time.monotonic(), time.process_time()
    attribute(model, task, "eap-ig")
    print(time.monotonic() - begin, time.process_time() - cpu)


if __name__ == "__main__":
    measure() if len(sys.argv) > 1 else main()
