"""What a start costs: CPU time of ``load_model("smollm2")`` and resident memory after it, from the cache.

Each turn is a process of its own, in which torch and gradpath are already imported; the fastest counts. The first turn
converts the model if the cache does not have it, and is not counted. Run it with ``make bench``.
"""

from __future__ import annotations

import json
import subprocess
import sys

TURNS = 3
LIMITS = {"CPU seconds": 1.5, "resident GB": 0.8}
TURN = """
import json, resource, time
import torch, gradpath
torch.set_num_threads(1)
begin = time.process_time()
model = gradpath.load_model("smollm2")
seconds = time.process_time() - begin
pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps([seconds, pages * resource.getpagesize() / 1e9]))
"""


def main() -> int:
    turns = [json.loads(subprocess.check_output([sys.executable, "-c", TURN])) for _ in range(TURNS + 1)][1:]
    figures = dict(zip(LIMITS, map(min, zip(*turns, strict=True)), strict=True))
    print(f"{'loading SmolLM2':16}{'':>6}{'limit':>8}")
    for name, figure in figures.items():
        print(f"{name:14}{figure:8.2f}{LIMITS[name]:8.2f}")
    return int(any(figure > LIMITS[name] for name, figure in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
