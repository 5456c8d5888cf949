"""The batch loop.

``sweep`` runs a piece of work on every batch of a task's pairs. It

1. takes batches that fit into memory: by an estimate beforehand (``limits``), and by halving a batch when the
   estimate was wrong;
2. deals the batches out over the ranks of a distributed run, after checking that all of them do the same work;
3. stops at a result that is not finite, and says on which example and in which layer it first occurs;
4. shows a progress bar, counted in batches.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.errors import GradpathError, check_type, is_out_of_memory
from gradpath.model.transformer import Transformer, to_device_of
from gradpath.registry import code_of, loaded_plugins
from gradpath.runtime import distributed
from gradpath.runtime.machine import return_memory
from gradpath.runtime.progress import progress_bar
from gradpath.tasks.metrics import Metric, metric_name
from gradpath.tasks.task import Pairs, Task

Output = TypeVar("Output")


@contextmanager
def own_settings(model: Transformer) -> Iterator[None]:
    """Compute in the model's own precision and with gradients available, whatever the caller has switched on."""
    check_type("the model", model, Transformer)
    with torch.inference_mode(False), torch.autocast(model.device.type, enabled=False):
        yield


def sweep(
    model: Transformer,
    task: Task,
    pairs: Pairs,
    cut: int | Sequence[Pairs],
    work: Callable[[Pairs], Output],
    *,
    doing: str,
    same: Callable[[], object] = lambda: None,
    bar: str = "",
    trim_memory: bool = True,
) -> Iterator[Output]:
    """Run some work on every batch, in halves where it does not fit into memory.

    With several ranks, each runs its share of the batches, and the caller has to sum the results over the ranks. The
    batches are the same as in a single process, so an example's numbers do not depend on the number of ranks. They
    are smaller only where a rank would have none.

    Args:
        model: The model, named in error messages.
        task: The task that the examples are from, named in error messages.
        pairs: The examples.
        cut: The number of examples in a batch, or all examples in batches.
        work: A function of one batch.
        doing: What the work is, as the subject of an error message.
        same: Gives everything that the work depends on besides the model and the examples; it must agree on all ranks.
        bar: What the progress bar says; by default there is none. On several ranks it counts those of the first.
        trim_memory: Whether to give freed memory back in the end. A caller that goes on at once would take it again.

    Yields:
        What the work returned for each batch.
    """

    def checked(batch: Pairs) -> Output:
        output = work(batch)
        if not _all_finite(_tensors(output)):
            _explain_nonfinite(work, batch, model, task, doing)
        return output

    world, batches = distributed.world(), list(pairs.batches(cut)) if isinstance(cut, int) else cut
    if world > 1:
        _check_same_work(model, task, pairs, [same(), [len(batch) for batch in batches]])
        if len(batches) < world:
            batches = list(pairs.batches(math.ceil(len(pairs) / world)))
    own = batches[distributed.rank() :: world]
    with distributed.fail_together(), progress_bar(bar, len(own)) as shown:
        for batch in own:
            yield from halving(checked, batch)
            shown.update()
    if world == 1 and len(batches) > 1 and trim_memory:  # not of a caller with many sweeps, which would take it again
        return_memory()


def _check_same_work(model: Transformer, task: Task, pairs: Pairs, same: object) -> None:
    """Refuse ranks that run different examples, models or code."""
    labels = pairs.labels if isinstance(pairs.labels, list) else [pairs.labels]
    content = (pairs.clean, pairs.corrupted, pairs.last, pairs.first, *labels)
    distributed.check_same("examples", *(torch.as_tensor(part).cpu().numpy().tobytes() for part in content))
    distributed.check_same("models, circuits or options", model.identity, same)
    code = metric_name(task.metric), code_of(task.metric), loaded_plugins()
    distributed.check_same("versions of gradpath, metrics or plug-ins", __version__, *code)


def halving(work: Callable[[Pairs], Output], batch: Pairs) -> Iterator[Output]:
    """Run the work on a batch, or on its halves, with a warning, where it does not fit into memory."""
    try:
        output = work(batch)
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        if len(batch) == 1:
            raise GradpathError(
                f"one example of {int(batch.last[0]) + 1} tokens does not fit into memory: "
                f"{_failed_allocation(problem)}. Use a smaller model, shorter prompts, fewer steps or --dtype "
                "bfloat16."
            ) from None
    else:
        yield output
        return
    half = len(batch) // 2
    warnings.warn(f"a batch of {len(batch)} examples does not fit into memory: trying {half}.", stacklevel=3)
    every = torch.arange(len(batch), device="cpu")
    for rows in (every[:half], every[half:]):
        yield from halving(work, batch.rows(rows))


def _failed_allocation(problem: Exception) -> str:
    match = re.search(r"tried to allocate ([0-9.]+ ?\w+)", str(problem), re.IGNORECASE)
    return f"the failed allocation was of {match[1]}" if match else "the size of the failed allocation is unknown"


# Numbers that are not finite. The result of a batch is checked as a whole. Only when it holds an infinity or a
# NaN are its examples run one by one, and the two prompts of the first that fails once more, layer by layer.


def _tensors(output: Any) -> Iterator[Tensor]:
    """All tensors in what the work returned."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


def _explain_nonfinite(
    work: Callable[[Pairs], object], batch: Pairs, model: Transformer, task: Task, doing: str
) -> None:
    """Raise an error that names the example, and where the first non-finite number occurs."""
    for row in range(len(batch)):
        single = batch.rows(torch.tensor([row], device="cpu"))
        if _all_finite(_tensors(work(single))):
            continue
        places = _outputs(model, task.metric, single.to(model.device))
        where = next((f"it first occurs in {name}" for name, x in places if not _all_finite([x])), None)
        where = where or "both prompts are finite, but a gradient or a patched run is not"
        index, number = int(single.index[0]), torch.finfo(model.dtype)
        prompt = "" if isinstance(task.clean, Tensor) else f" ({task.clean[index]!r})"
        half = f"Use float32, because {number.dtype} overflows above {number.max:.3g}; or leave out the example, or "
        advice = half if number.bits <= 16 else "Leave out the example, or "
        raise GradpathError(
            f"{doing} produced a non-finite number on example {index}{prompt} of {task.name} in "
            f"{model.name or 'this model'}: {where}. {advice}check the weights and the metric."
        )
    raise GradpathError(
        f"{doing} produced a non-finite sum over {len(batch)} examples, although each of them alone is finite. "
        "Use a smaller --batch-size."
    )


def _outputs(model: Transformer, metric: Metric, single: Pairs) -> Iterator[tuple[str, Tensor]]:
    """What each layer writes on the two prompts of an example, the logits and the metric, with their names."""
    for name, ids in (("clean", single.clean), ("corrupted", single.corrupted)):
        with torch.no_grad():
            x = model.embed(ids)
            outputs = [("the embeddings", x)]
            outputs += [(f"layer {index}", out) for index, (_, out) in enumerate(model.layer_runs(x))]
            logits = model.unembed(to_device_of(outputs[-1][1], x)[:, -1])
            outputs += [("the logits", logits), ("the metric", metric(logits, single.labels))]
        yield from ((f"{where} on the {name} prompt", output) for where, output in outputs)
