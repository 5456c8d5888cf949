"""Where the time goes: CPU time of each method by kind of work, and how far it is from its limit.

Every operation that PyTorch runs is timed as it is dispatched, in the forward and the backward pass, and put
down to the part of the method that asked for it. What is left of the CPU time that the method takes when
nobody looks is Python's and the dispatcher's. The limit of a method is the time of its model products alone:
the same sequence of products, on the same weights, with nothing in between. The setting is that of
``cost.py``. Run it with ``make bench-profile``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import GPT2Config, GPT2LMHeadModel

from cost import BATCH, forward_backward, prompts
from gradpath.attribution import attribute as one_batch
from gradpath.attribution import batch
from gradpath.attribution.attribute import attribute
from gradpath.attribution.contraction import Reads
from gradpath.evaluation.patched_run import TOGETHER, SparseReads, plan_of, run_circuits
from gradpath.model.families import convert
from gradpath.model.transformer import Transformer
from gradpath.prepared import prepare
from gradpath.selection import select
from gradpath.study.outcome import commit
from gradpath.tasks.task import encode

SEED, TURNS = 0, 5
EVALUATION = "one more circuit"
WORKS = {EVALUATION: TOGETHER}  # how many of them are run at once
KINDS = ("model products", "attention", "norms, element-wise", "scoring", "Python, other")
PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm}
Work = Callable[[], object]


class Ledger(TorchDispatchMode):
    """CPU seconds by kind of work, and the model's products to be run again."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self.weights = weights  # where their storages begin
        self.seconds: dict[str, float] = defaultdict(float)
        self.products: list[Work] = []
        self.flop = 0
        self._scoring = False
        self._pool: dict[Any, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begin = time.thread_time()
        out = func(*args, **kwargs)
        spent = time.thread_time() - begin
        if not func.is_view:
            kind = self._kind(func)
            self.seconds[kind] += spent
            if kind == "model products":
                self.flop += flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
                self.products.append(partial(func, *map(self._standing_in, args), **kwargs))
        return out

    def _kind(self, func: Any) -> str:
        if self._scoring:
            return "scoring"
        if "scaled_dot_product" in func.name():
            return "attention"
        return "model products" if func._overloadpacket in PRODUCTS else "norms, element-wise"

    def _standing_in(self, value: Any) -> Any:
        """A weight itself, and for anything else a tensor of the same layout."""
        if not isinstance(value, Tensor) or value.untyped_storage().data_ptr() in self.weights:
            return value
        layout = (value.shape, value.stride(), value.dtype)
        if layout not in self._pool:
            self._pool[layout] = torch.empty_strided(*layout[:2], dtype=value.dtype).normal_()
        return self._pool[layout]

    def scope(self, function: Callable[..., Any], scoring: bool) -> Callable[..., Any]:
        """The function, with what it does filed under scoring, or no longer."""

        @wraps(function)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            before, self._scoring = self._scoring, scoring
            try:
                return function(*args, **kwargs)
            finally:
                self._scoring = before

        return scoped

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Time all that is run in here. Scoring has a backward pass in it, which is the model's."""
        scoring, models = partial(self.scope, scoring=True), partial(self.scope, scoring=False)
        with (
            patch.object(one_batch, "contract", scoring(one_batch.contract)),
            patch.object(batch, "write_differences", scoring(batch.write_differences)),
            patch.object(Reads, "add", scoring(Reads.add)),
            patch.object(SparseReads, "read", scoring(SparseReads.read)),
            patch.object(torch.autograd, "grad", models(torch.autograd.grad)),
            self,
        ):
            yield


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    original = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    model, task = convert(original), prompts()
    works: dict[str, Work] = {
        name: partial(attribute, model, task, name, batch_size=BATCH) for name in ("eap", "eap-ig", "eap-gp")
    }
    works[EVALUATION] = evaluation(model, task)
    weights = storages(model)
    unit, total, limit = float("inf"), defaultdict(lambda: float("inf")), defaultdict(lambda: float("inf"))
    ledgers: dict[str, Ledger] = {}
    for _ in range(TURNS):
        unit = min(unit, seconds(lambda: forward_backward(original, task)))
        for name, work in works.items():
            total[name] = min(total[name], seconds(work))
            ledger = Ledger(weights)
            with ledger.keeping():
                work()
            limit[name] = min(limit[name], seconds(partial(run_all, ledger.products)))
            if name not in ledgers or sum(ledger.seconds.values()) < sum(ledgers[name].seconds.values()):
                ledgers[name] = ledger
    print(f"Seed {SEED}, commit {commit()}, torch {torch.__version__}, the best of {TURNS} turns.\n")
    print(f"| | units | {' | '.join(KINDS)} | limit, units | time / limit | GFLOP of model products |")
    print("|---" * (len(KINDS) + 5) + "|")
    for name, ledger in ledgers.items():
        own = ledger.seconds | {"Python, other": total[name] - sum(ledger.seconds.values())}
        share = " | ".join(f"{own.get(kind, 0) / total[name]:.0%}" for kind in KINDS)
        whole, most = unit * WORKS.get(name, 1), total[name] / limit[name]
        ends = f"{limit[name] / whole:.2f} | {most:.2f} | {ledger.flop / WORKS.get(name, 1) / 1e9:.0f}"
        print(f"| {name} | {total[name] / whole:.2f} | {share} | {ends} |")


def evaluation(model: Transformer, task: Any) -> Work:
    """Some circuits at 97.5% sparsity, all that is done once for them aside."""
    circuit = select(attribute(model, task, "eap", batch_size=BATCH), sparsity=0.975)
    plans = [plan_of(model, circuit)] * TOGETHER
    stages = [prepare(model, batch) for batch in encode(task, None).batches(BATCH)]

    @torch.no_grad()
    def work() -> None:
        for stage in stages:
            list(run_circuits(stage, plans, task.metric))

    return work


def storages(model: Transformer) -> set[int]:
    tensors = [t for x in (*model.layers, model) for t in vars(x).values() if isinstance(t, Tensor)]
    return {t.untyped_storage().data_ptr() for t in tensors}


def seconds(work: Work) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def run_all(products: list[Work]) -> None:
    for product in products:
        product()


if __name__ == "__main__":
    main()
