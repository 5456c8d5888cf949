"""What a run of ``find`` will take, without running the model: ``gradpath find --dry-run``.

The weights are not loaded where a configuration is at hand, so that the answer for a large model takes seconds.
"""

from __future__ import annotations

from typing import Any

import torch

from gradpath import defaults
from gradpath.attribution.methods import recorded_method
from gradpath.model.transformer import Transformer
from gradpath.pipeline.examples import draw
from gradpath.recipe import PROMPT, Recipe
from gradpath.sweep import Limits, bytes_of_weights, least_bytes, peak_bytes, size_text
from gradpath.tasks.task import Pairs, Task, encode

PROCESS = 300 << 20  # bytes of a process with PyTorch and transformers, before it has a model
ASSUMED = 20, 10  # tokens of a prompt, and from the first difference on, where there is no tokenizer


def forecast(model: Transformer, recipe: Recipe, limits: Limits = Limits()) -> dict[str, Any]:
    """What the run of a recipe takes in memory and passes."""
    method, options = recorded_method(recipe)
    attributed, held_out = (_pairs(model, recipe, split) for split in (recipe.attributed_split, recipe.measured_split))
    points = method.points(options)
    weights = bytes_of_weights(model)
    peaks = [PROCESS + peak_bytes(model, attributed, points, device) for device in ("cpu", "gpu")]
    least = PROCESS + least_bytes(model, attributed)
    if limits.memory is not None:
        peaks = [max(least, min(peak, PROCESS + limits.memory)) for peak in peaks]
    # While it is loaded, a model of a folder or the hub is in memory twice; a packaged one is mapped from its cache.
    loading = PROCESS + (2 if model.embedding.is_meta else 1) * weights
    return {
        "model": recipe.model,
        "edges_total": model.graph.n_edges,
        "layers": model.graph.n_layers,
        "heads": model.graph.n_heads,
        "d_model": model.arch.d_model,
        "dtype": model.dtype_name,
        "task": recipe.task or recipe.data or (defaults.TASK if recipe.clean is None else PROMPT),
        "method": recipe.method,
        "selection": recipe.selection,
        "examples": len(attributed),
        "examples_measured": len(held_out),
        "tokens": int(attributed.last.max()) + 1,
        "tokens_from_first_difference": int((attributed.last + 1 - attributed.first).max()),
        "tokens_assumed": model.tokenizer is None,
        "weight_bytes": weights,
        "loading_bytes": loading,
        "cpu_bytes": max(peaks[0], loading),
        "gpu_bytes": peaks[1],
        "least_bytes": least,
        "forward_passes": method.passes(model, options),
        "points": points,
    }


def _pairs(model: Transformer, recipe: Recipe, split: str) -> Pairs:
    """The examples as token ids; of a model without a tokenizer, as many of an assumed length."""
    if model.tokenizer is None:
        n, (tokens, rows) = recipe.examples or defaults.EXAMPLES, ASSUMED
        clean = torch.zeros(n, tokens, dtype=torch.long, device="cpu")
        corrupted = clean.clone()
        corrupted[:, tokens - rows :] = 1
        return encode(Task(clean, corrupted, torch.tensor([[0, 1]] * n, device="cpu")), None)
    if recipe.clean is not None:
        labels = torch.tensor([[0, 1]], device="cpu")
        return encode(Task([recipe.clean], [str(recipe.corrupted)], labels), model.tokenizer)
    task = draw(model, Recipe(**{**recipe.recorded, "metric": None}), split, data=recipe.data)  # kl runs the model
    return encode(task, model.tokenizer)


def forecast_text(told: dict[str, Any]) -> str:
    """The forecast for people."""
    sizes = {name: size_text(told[f"{name}_bytes"]) for name in ("weight", "loading", "cpu", "gpu", "least")}
    tokens = f"up to {told['tokens']} tokens, {told['tokens_from_first_difference']} from the first difference on"
    if told["tokens_assumed"]:
        tokens = f"{told['tokens']} tokens assumed, since the model has no tokenizer here"
    forward = told["forward_passes"]
    return "\n".join(
        [
            f"{told['method']} on {told['task']} in {told['model']} would take:",
            f"  model         {told['edges_total']:,} edges: {told['layers']} layers of {told['heads']} heads, width "
            f"{told['d_model']:,}, {told['dtype']}",
            f"  examples      {told['examples']:,} for attribution, {told['examples_measured']:,} for evaluation",
            f"  prompts       {tokens}",
            f"  loading       about {sizes['loading']} of the machine's memory for weights of {sizes['weight']}",
            f"  on a CPU      about {sizes['cpu']}",
            f"  on a GPU      from {sizes['least']} on; where more is free, larger batches take up to {sizes['gpu']}",
            f"  budget        --memory sets one, of at least {sizes['least']}",
            f"  attribution   {forward:,.3g} forward passes and at least {told['points']:,} backward "
            f"pass{'' if told['points'] == 1 else 'es'}, for each example",
            f"  selection     {told['selection'] or 'nodes'}, which may run circuits; each is a forward pass or less",
            "No weight was read and nothing was written." if told["tokens_assumed"] else "Nothing was written.",
        ]
    )
