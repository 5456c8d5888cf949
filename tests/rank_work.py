"""What every rank of ``test_ranks`` does: all that is shared, once, and the first writes what came out.

    torchrun --nproc-per-node N rank_work.py OUT
    python rank_work.py OUT N

The second imports everything once and forks the ranks, with the variables and the meeting point that torchrun
gives them. With N = 1, or imported, it is what one process finds.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from small_models import prompts, tiny_model

import gradpath as gp
from gradpath.paper.saturation import follow_line
from gradpath.runtime import distributed
from gradpath.sweep import Limits

TASK = prompts([6, 9, 6, 7, 9, 8, 6], [[0], [4], [2, 3], [6], [1, 8], [5], [3]])
METHODS = ("eap", "eap-ig", "eap-gp")


def everything() -> dict[str, Any]:
    """Numbers of every kind of shared work, by name."""
    model, found = tiny_model("gpt2"), {}
    for method in METHODS:
        for size in {"eap": (3,), "eap-ig": (1, 3), "eap-gp": (20,)}[method]:
            scores = gp.attribute(model, TASK, method, batch_size=size)
            found[f"{method} in batches of {size}"] = scores.values.flatten().tolist()
            found[f"passes of {method} in batches of {size}"] = list(scores.facts.passes.values())
    found["mean ablation"] = gp.attribute(model, TASK, "eap", ablation="mean-positional").values.flatten().tolist()
    few = gp.attribute(model, TASK[:2], "eap-ig")
    found["fewer examples than ranks"] = few.values.flatten().tolist()
    scores = gp.attribute(model, TASK, "eap-ig", batch_size=2)
    circuits = [gp.select(scores, n=40, selection="top")]
    for how, n in (("refined", 5), ("learned+steps=2", 30)):
        circuits.append(gp.select(scores, n=n, selection=how, model=model, task=TASK, batch_size=2))
        found[how] = sorted(map(float, circuits[-1].index.flatten()))
    for result in gp.evaluate(model, circuits, TASK, batch_size=2):
        values = (result.clean_values, result.corrupted_values, result.circuit_values)
        found.setdefault("metrics", []).extend(torch.cat(values).tolist())
    found["exact"] = gp.attribute(model, TASK, "exact", edges=5, batch_size=2).values.flatten().tolist()
    line = follow_line(model, TASK, "a0.h1->m1", 3, limits=Limits(2))
    found["followed"] = torch.cat([x.flatten() for x in line.values()]).tolist()
    return found


def refusals() -> dict[str, str]:
    """What is said when ranks do not do the same, or one of them fails."""
    model, said = tiny_model("gpt2"), {}
    mine = TASK if distributed.rank() == 0 else TASK[:3]

    def heard(name: str, work: Any) -> None:
        try:
            work()
        except Exception as problem:
            said[name] = f"{type(problem).__name__}: {problem}"

    heard("other examples", lambda: gp.attribute(model, mine, "eap"))
    heard("other options", lambda: gp.attribute(model, TASK, "eap-ig", steps=2 + distributed.rank()))

    def metric(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if distributed.rank() == 1:
            raise ValueError("no such label")
        return logits[:, 0]

    failing = gp.Task(TASK.clean, TASK.corrupted, TASK.labels, metric=metric)
    heard("one fails", lambda: gp.attribute(model, failing, "eap", batch_size=2))
    with distributed.alone():
        own = gp.attribute(model, mine, "eap").facts.examples
    said["alone"] = str(own)
    return said


def work(out: Path) -> None:
    found = {"numbers": everything()}
    if distributed.world() > 1:
        found["refusals"] = refusals()
    name = out.with_name(f"{out.name}-{distributed.rank()}.json")
    name.write_text(json.dumps(found))


def forked(n_ranks: int, out: Path) -> int:
    """Start so many ranks from here; how many of them failed."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a free port
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    children = []
    for rank in map(str, range(n_ranks)):
        children.append(os.fork())
        if children[-1]:
            continue
        os.environ |= {**place, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(n_ranks)}
        try:
            work(out)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *number = sys.argv[1:]
    sys.exit(forked(int(number[0]), Path(folder)) if number else work(Path(folder)))
