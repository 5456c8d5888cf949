"""Numbers that are none: whose fault they are, and where in the computation the first of them arises.

Work on a batch is checked by its result alone, one look at what it gives. Only when that holds an infinity or
a NaN is the batch taken apart: its examples are run one by one, and the first that fails is followed through
its computation, place by place, to the first value that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from gradpath.errors import GradpathError
from gradpath.graph import QKV
from gradpath.model.transformer import Run, Transformer
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs, Task

Done = TypeVar("Done")
Places = Iterator[tuple[str, Tensor]]  # names of places and the values there, in the order of the computation


def watched(
    work: Callable[[Pairs], Done],
    results: Callable[[Done], Iterable[Tensor]],
    *,
    model: Transformer,
    task: Task,
    doing: str,
    places: Callable[[Pairs], Places],
) -> Callable[[Pairs], Done]:
    """The same work, which stops at a result that is not finite and says where it comes from.

    ``places`` goes through the computation of one example, as far as anybody may want to look.
    """

    def checked(batch: Pairs) -> Done:
        done = work(batch)
        if _finite(results(done)):
            return done
        for row in range(len(batch)):
            single = batch.rows(torch.tensor([row], device="cpu"))
            if not _finite(results(work(single))):
                where = next((name for name, x in places(single) if not _finite([x])), "the last sum")
                raise GradpathError(_said(model, task, doing, single, where))
        raise GradpathError(
            f"{doing} gave a sum over {len(batch)} examples that is not a finite number, though each of them "
            "alone gives one. Use a smaller --batch-size."
        )

    return checked


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


def _said(model: Transformer, task: Task, doing: str, single: Pairs, where: str) -> str:
    index, number = int(single.index[0]), torch.finfo(model.dtype)
    prompt = "" if isinstance(task.clean, Tensor) else f" ({task.clean[index]!r})"
    wider = "" if number.bits > 16 else f"{number.dtype} ends at {number.max:.3g}: use float32, or "
    return (
        f"{doing} gave a number that is not finite on example {index}{prompt} of {task.name} in "
        f"{model.name or 'this model'}: the first one arises in {where}. "
        + f"{wider}leave the example out, or look at the weights and the metric there.".capitalize()
    )


def of_prompts(model: Transformer, metric: Metric, single: Pairs) -> Places:
    """The clean and the corrupted run of one example, and the metric of each."""
    single = single.to(model.device)
    for name, ids in (("clean", single.clean), ("corrupted", single.corrupted)):
        with torch.no_grad():
            x = model.embed(ids)
            run = model.run(x)
            logits = model.unembed(run.final_in[:, -1])
            where = f"on the {name} prompt"
            yield from of_run(where, x, run, logits)
            yield f"the metric {where}", metric(logits, single.labels)


def of_run(where: str, x: Tensor, run: Run, logits: Tensor) -> Places:
    yield f"input {where}", x
    for index, layer in enumerate(run.layers):
        for kind, projected in zip(QKV, (layer.q, layer.k, layer.v), strict=True):
            yield from by_head(f"a{index}", f"<{kind}> {where}", projected)
        yield from by_head(f"a{index}", f" {where}", layer.z)
        yield f"the heads of layer {index} {where}", layer.written
        yield f"m{index} {where}", layer.mlp_out
    yield f"logits {where}", logits


def by_head(before: str, after: str, x: Tensor) -> Places:
    for head, values in enumerate(x.unbind(-2)):
        yield f"{before}.h{head}{after}", values
