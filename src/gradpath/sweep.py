"""One loop over batches for everybody.

``sweep`` runs a piece of work on every batch of a task's pairs. It

1. takes batches that fit into memory: by an estimate beforehand (``Limits``), and by halving a batch when the
   estimate was wrong;
2. deals the batches out over the ranks of a distributed run, after checking that all of them do the same work;
3. stops at a result that is not finite, and says on which example and at which node it first arises;
4. reports progress.

The estimate counts what autograd keeps: per position and layer about five tensors of the widths of the
residual stream, of the fused projection and of the MLP's hidden layer. That is what was measured on GPT-2
small's shape (within a fifth for EAP, EAP-IG and EAP-GP). It is meant to err on the high side.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradpath import defaults
from gradpath.errors import GradpathError, UsageError, check_type, whole_number
from gradpath.graph import QKV
from gradpath.model.transformer import Run, Transformer
from gradpath.runtime import distributed
from gradpath.runtime.progress import Phase, job
from gradpath.tasks.metrics import Metric
from gradpath.tasks.task import Pairs, Task, encode

Done = TypeVar("Done")
Progress = Callable[[int], None]  # called with the number of examples that were finished
# What the public functions take: a function, True for a bar, False or None for neither.
ShowProgress = Progress | bool | None
# Names of places and the values there, in the order of the computation.
Places = Generator[tuple[str, Tensor], None, None]

# Points of a stack that are run at once, and points that are summed before a contraction: what bounds
# memory when a path is long.
RUN_AT_ONCE = 4
SUM_AT_ONCE = 8
# The most bytes that the expanded writes of one chunk of rows may take.
CHUNK = 1 << 27

_COPIES = 5
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


@dataclass(frozen=True)
class Limits:
    """How much may be computed at once.

    Args:
        batch_size: The largest number of examples in a batch.
        memory: A budget in bytes, weights included, that batches are made smaller for.
    """

    batch_size: int = defaults.BATCH_SIZE
    memory: int | None = None

    def batch(self, model: Transformer, pairs: Pairs, *, points: int = 1, whole: bool = False, results: int = 1) -> int:
        """The largest batch size whose estimate stays within the budget.

        Args:
            model: The model to run.
            pairs: The examples; the longest of them counts.
            points: The number of points of the path.
            whole: Whether the path moves positions before the first difference, too.
            results: How many matrices of scores are summed at the same time.
        """
        most = min(whole_number("the batch size", self.batch_size), len(pairs))
        if self.memory is None:
            return most
        # The scores (once in float64, twice in float32) and one chunk of the contraction.
        scores = 16 * results * model.graph.n_pairs + 2 * CHUNK
        fixed, one = _bytes_of_weights(model) + scores, _bytes_per_example(model, pairs, points, whole)
        fits = (self.memory - fixed) // one
        if fits < 1:
            raise UsageError(
                f"a memory budget of {_size(self.memory)} is too small for {model.name or 'this model'}: it "
                f"needs about {_size(fixed + one)} to run one example at a time. Allow more, or use --dtype "
                "bfloat16."
            )
        return int(min(most, fits))


@contextmanager
def own_settings(model: Transformer) -> Iterator[None]:
    """Compute in the model's own precision and with gradients available, whatever the caller has switched on."""
    check_type("the model", model, Transformer)
    with torch.inference_mode(False), torch.autocast(model.device.type, enabled=False):
        yield


def units(model: Transformer, task: Task, passes: float) -> float:
    """The work of some forward passes over the task, as ``runtime.progress`` counts it."""
    pairs = encode(task, model.tokenizer)
    # A batch has one prefix, up to the first difference of any of its pairs.
    prefix, every = int(pairs.first.min()) * len(pairs), int(pairs.last.sum()) + len(pairs)
    share = 1 / distributed.world()
    return share * model.arch.n_layers * (prefix + passes * (every - prefix))


@contextmanager
def shown(progress: ShowProgress, phase: Callable[[], Phase]) -> Iterator[Progress | None]:
    """A bar over one phase, if that was asked for; otherwise the caller's own function, or None."""
    if progress is not True:
        yield progress or None
        return
    own = phase()
    with job(own.total, shown=True) as bar, bar.phase(own):
        yield None


def parse_bytes(text: str) -> int:
    """'600MB', '16GiB' or '2e9' as a number of bytes.

    >>> parse_bytes("1.5 GB")
    1500000000
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([KMG]I?|)B?\s*", text, re.IGNORECASE)
    try:
        return int(float(match[1]) * _UNITS[match[2].upper()]) if match else int("")
    except ValueError:
        raise UsageError(f"a memory budget is written like 600MB or 16GiB: got {text!r}.") from None


def _bytes_of_weights(model: Transformer) -> int:
    tensors = [t for x in (*model.layers, model) for t in vars(x).values() if isinstance(t, Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _bytes_per_example(model: Transformer, pairs: Pairs, points: int, whole: bool) -> int:
    length = int(pairs.last.max()) + 1
    suffix = length - int(pairs.first.min())
    # The clean and the corrupted run, and the points that are run at once.
    rows = suffix + 2 * length if whole else suffix * (2 + min(points - 1, RUN_AT_ONCE))
    layer = model.layers[0]
    width = model.arch.d_model + len(layer.w_qkv) + len(layer.w_in)
    activations = rows * model.arch.n_layers * _COPIES * width
    logits = 4 * (2 + min(points, RUN_AT_ONCE)) * len(model.unembedding)
    return (activations + logits) * model.embedding.element_size()


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 10**9:.2f} GB" if n_bytes >= 10**9 else f"{n_bytes / 10**6:.0f} MB"


def sweep(
    work: Callable[[Pairs], Done],
    pairs: Pairs,
    size: int,
    *,
    model: Transformer,
    task: Task,
    doing: str,
    same: Callable[[], object],
    places: Callable[[Pairs], Places] | None = None,
    progress: Progress | None = None,
) -> Iterator[Done]:
    """Run the work on every batch, or on its parts where it does not fit into memory.

    With several ranks each runs its own batches, and the caller has to add the results up over the ranks. The
    batches are those of one process, so an example's numbers do not depend on the number of ranks; they are
    only made smaller where a rank would have none.

    Args:
        work: A function of one batch.
        pairs: The examples.
        size: The number of examples in a batch.
        model: The model, named in error messages.
        task: The task that the examples are from, named in error messages.
        doing: What the work is, as the subject of an error message.
        same: Gives everything that the work depends on besides the examples; it must agree on all ranks.
        places: Goes through the computation of one example, to find where a value is not finite. By default
            through its two prompts.
        progress: Called with the number of examples of each finished batch; on the first rank, for all of them.

    Yields:
        What the work returned for each batch.
    """

    def checked(batch: Pairs) -> Done:
        done = work(batch)
        if not _all_finite(_tensors(done)):
            _explain_nonfinite(work, batch, model, task, doing, places)
        return done

    world = distributed.world()
    if world == 1:
        for batch in pairs.batches(size):
            yield from halving(checked, batch)
            if progress is not None:
                progress(len(batch))
        return
    labels = pairs.labels if isinstance(pairs.labels, list) else [pairs.labels]
    content = (pairs.clean, pairs.corrupted, pairs.last, pairs.first, *labels)
    distributed.check_same("examples", *(torch.as_tensor(part).cpu().numpy().tobytes() for part in content))
    distributed.check_same("models, circuits or options", same(), size)
    left = len(pairs)
    with distributed.fail_together():
        enough = math.ceil(len(pairs) / size) >= world
        batches = pairs.batches(size if enough else math.ceil(len(pairs) / world))
        for batch in islice(batches, distributed.rank(), None, world):
            yield from halving(checked, batch)
            if progress is not None:
                progress(min(left, len(batch) * world))
                left -= min(left, len(batch) * world)


def halving(work: Callable[[Pairs], Done], batch: Pairs) -> Iterator[Done]:
    """Run the work on a batch, or on its halves, with a warning, where it does not fit into memory."""
    try:
        done = work(batch)
    except (RuntimeError, MemoryError) as problem:
        if not _out_of_memory(problem):
            raise
        if len(batch) == 1:
            raise GradpathError(
                f"one example of {int(batch.last[0]) + 1} tokens does not fit into memory: "
                f"{_failed_allocation(problem)}. Use a smaller model, shorter prompts, fewer steps or --dtype "
                "bfloat16."
            ) from None
    else:
        yield done
        return
    half = len(batch) // 2
    warnings.warn(f"a batch of {len(batch)} examples does not fit into memory: trying {half}.", stacklevel=3)
    every = torch.arange(len(batch), device="cpu")
    for rows in (every[:half], every[half:]):
        yield from halving(work, batch.rows(rows))


def _out_of_memory(problem: Exception) -> bool:
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(problem, kinds) or "can't allocate memory" in str(problem)


def _failed_allocation(problem: Exception) -> str:
    match = re.search(r"tried to allocate ([0-9.]+ ?\w+)", str(problem), re.IGNORECASE)
    return f"the allocation that failed was of {match[1]}" if match else "its size is not known"


# Numbers that are not finite. The result of a batch is checked as a whole. Only when it holds an infinity or a
# NaN are its examples run one by one, and the first that fails is followed through its computation, place by
# place, to the first value that is not finite.


def _tensors(done: Any) -> Iterator[Tensor]:
    """All tensors in what the work returned."""
    if isinstance(done, Tensor):
        yield done
    elif isinstance(done, (list, tuple, dict)):
        for part in done.values() if isinstance(done, dict) else done:
            yield from _tensors(part)


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)


def _explain_nonfinite(
    work: Callable[[Pairs], object],
    batch: Pairs,
    model: Transformer,
    task: Task,
    doing: str,
    places: Callable[[Pairs], Places] | None,
) -> None:
    """Raise an error that names the example and the place where the first number that is not finite arises."""
    for row in range(len(batch)):
        single = batch.rows(torch.tensor([row], device="cpu"))
        if _all_finite(_tensors(work(single))):
            continue
        steps = places_in_prompts(model, task.metric, single) if places is None else places(single)
        with closing(steps):  # an open generator would keep its grad mode
            where = next((name for name, x in steps if not _all_finite([x])), "the last sum")
        index, number = int(single.index[0]), torch.finfo(model.dtype)
        prompt = "" if isinstance(task.clean, Tensor) else f" ({task.clean[index]!r})"
        wider = "" if number.bits > 16 else f"{number.dtype} ends at {number.max:.3g}: use float32, or "
        advice = f"{wider}leave the example out, or look at the weights and the metric there.".capitalize()
        raise GradpathError(
            f"{doing} gave a number that is not finite on example {index}{prompt} of {task.name} in "
            f"{model.name or 'this model'}: the first one arises in {where}. {advice}"
        )
    raise GradpathError(
        f"{doing} gave a sum over {len(batch)} examples that is not a finite number, though each of them "
        "alone gives one. Use a smaller --batch-size."
    )


def places_in_prompts(model: Transformer, metric: Metric, single: Pairs) -> Places:
    """The clean and the corrupted run of one example, and the metric of each."""
    single = single.to(model.device)
    for name, ids in (("clean", single.clean), ("corrupted", single.corrupted)):
        with torch.no_grad():
            x = model.embed(ids)
            run = model.run(x)
            logits = model.unembed(run.final_in[:, -1])
            where = f"on the {name} prompt"
            yield from places_in_run(where, x, run, logits)
            yield f"the metric {where}", metric(logits, single.labels)


def places_in_run(where: str, x: Tensor, run: Run, logits: Tensor) -> Places:
    """Every node of a run, in the order of the computation."""
    yield f"input {where}", x
    for index, layer in enumerate(run.layers):
        for kind, projected in zip(QKV, (layer.q, layer.k, layer.v), strict=True):
            yield from places_by_head(f"a{index}", f"<{kind}> {where}", projected)
        yield from places_by_head(f"a{index}", f" {where}", layer.z)
        yield f"the heads of layer {index} {where}", layer.written
        yield f"m{index} {where}", layer.mlp_out
    yield f"logits {where}", logits


def places_by_head(before: str, after: str, x: Tensor) -> Places:
    for head, values in enumerate(x.unbind(-2)):
        yield f"{before}.h{head}{after}", values
