"""Only a circuit runs in the user's own model: ``with gp.ablated(model, circuit, ...)``.

A forward hook on every layer of a ``transformers`` model replaces what the layer returns by the same layer of the
patched run: each target reads the residual stream minus what the edges outside the circuit bring,

    in_v = residual stream - sum over edges u -> v outside the circuit of (x_u - x'_u),

so logits are those of ``gp.evaluate``. The stream itself stays the sum of all outputs, as in the model, for probes that
read it between layers; the last layer returns what ``logits`` reads. All positions are computed, and nothing is cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gradpath.ablation import CORRUPTED, Ablation, ablation_of
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError, check_type
from gradpath.evaluation.patched_run import check_same_graph, project
from gradpath.graph import QKV
from gradpath.model.load import load_model
from gradpath.model.transformer import PositionInfo, Transformer
from gradpath.tasks.task import Task


class AblatedRun:
    """A model's forward pass with all edges outside a circuit ablated, layer by layer.

    Args:
        model: The model.
        circuit: The circuit.
        values: What ablated nodes write.
        corrupted: The corrupted prompts that ``values`` are of, if the ablation is theirs.
    """

    def __init__(self, model: Transformer, circuit: Circuit, values: Ablation, corrupted: Tensor | None) -> None:
        self.model, self._values, self._corrupted = model, values, corrupted
        self._left_out = (circuit.graph.mask & ~circuit.mask).to(model.device, model.dtype)
        self._differences: list[Tensor] = []  # x_u - x'_u of the sources so far, (source, batch, pos, d_model)
        self._positions: PositionInfo

    def logits(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """Logits at every position, without gradients."""
        with torch.no_grad():
            resid = self.model.with_positions(self.begin(ids), 0)
            for index in range(self.model.arch.n_layers):
                resid = self.layer(index, resid)
            return self.model.unembed(resid)

    def begin(self, ids: Int[Tensor, "batch pos"]) -> Tensor:
        """Begin a run on these prompts, and return their token embeddings."""
        if self._corrupted is not None and ids.shape != self._corrupted.shape:
            raise InputError(
                f"the corrupted prompts have the shape {tuple(self._corrupted.shape)}, and the model was called with "
                f"{tuple(ids.shape)}. Call it with as many prompts of the same length, or give mean_over= "
                "instead of corrupted= to generate text."
            )
        x = self.model.embed(ids)
        self._positions = self.model.position_info(0, ids.shape[1])
        self._differences = [(x - self._at_positions(self._values.input, x))[None]]
        return x

    def layer(self, index: int, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """The residual stream after a layer, given that before it; after the last layer, what ``logits`` reads."""
        model, graph, layer = self.model, self.model.graph, self.model.layers[index]
        heads = graph.targets_of_heads(index, range(graph.n_heads))
        reads = (resid - self._removed(heads)).flatten(1, 2)
        projected = project(model, index, heads, reads).values
        projected = projected.view(len(QKV), graph.n_heads, *resid.shape[:2], -1)
        q, k, v = projected.permute(0, 2, 3, 1, 4)  # (batch, pos, head, d_qkv) each
        keys_values = model.keys_and_values(layer, k, v, self._positions)
        z = model.attend(layer, model.queries(layer, q, self._positions), keys_values, self._positions)
        attention_out, written = model.attention_out(layer, z)
        change = written - self._at_positions(self._values.heads[index], written)
        weights = model.head_output_weights(index)
        self._differences.append(torch.einsum("bphe,dhe->hbpd", change, weights))

        after = resid + attention_out
        mlp_in = (resid if graph.parallel else after) - self._removed([graph.target_mlp(index)])[0]
        mlp_out = model.mlp(layer, mlp_in)
        self._differences.append((mlp_out - self._at_positions(self._values.mlps[index], mlp_out))[None])
        after = after + mlp_out
        return after - self._removed([graph.logits])[0] if index == graph.n_layers - 1 else after

    def _at_positions(self, values: Tensor, like: Tensor) -> Tensor:
        """The values at the positions of a run: of each corrupted prompt, or the same for all prompts."""
        if self._corrupted is not None:
            return values
        return values[torch.arange(like.shape[1], device=like.device).clamp(max=len(values) - 1)]

    def _removed(self, targets: list[int]) -> Tensor:
        """What the edges outside the circuit bring to some targets, (target, batch, pos, d_model)."""
        known = torch.cat(self._differences)
        return torch.einsum("sbpd,st->tbpd", known, self._left_out[: len(known), targets])


@contextmanager
def ablated(
    model: Any,
    circuit: Circuit,
    *,
    corrupted: Int[Tensor, "prompt pos"] | None = None,
    mean_over: Task | None = None,
    tokenizer: Any = None,
) -> Iterator[AblatedRun]:
    """Make a model compute with only the circuit, until the end of the ``with`` block.

    The hooks are removed at its end, also after an error. Prompts may be padded on the right, and caches of keys and
    values are switched off.

    Args:
        model: A ``transformers`` model, a ``TransformerBridge`` of TransformerLens, or a model of ``gp.load_model``,
            which is not changed: use the ``logits`` of what the block yields.
        circuit: The circuit.
        corrupted: Token ids of the corrupted prompts. The model can then be called with as many clean prompts, in the
            same order and of the same length. Edges outside the circuit carry what their source writes there.
        mean_over: A task: edges outside the circuit carry the means over its clean prompts. Prompts of any length can
            then be run, so this is the one to generate text with.
        tokenizer: The tokenizer, if ``mean_over`` consists of texts and the model comes without one.

    Yields:
        The run. Its ``logits(ids)`` are those of the model in this block.
    """
    check_type("the circuit", circuit, Circuit)
    own = model if isinstance(model, Transformer) else load_model(model, tokenizer=tokenizer)
    check_same_graph(own, circuit)
    run = AblatedRun(own, circuit, _values(own, circuit, corrupted, mean_over), corrupted)
    with ExitStack() as until_the_end:
        if own is not model:
            _hook(model, run, until_the_end)
        yield run


@torch.no_grad()
def _values(model: Transformer, circuit: Circuit, corrupted: Tensor | None, mean_over: Task | None) -> Ablation:
    """What ablated nodes write."""
    if corrupted is not None and mean_over is None:
        x = model.embed(corrupted)
        layers = model.run(x).layers
        return Ablation(x, [layer.written for layer in layers], [layer.mlp_out for layer in layers])
    if corrupted is not None or mean_over is None:
        raise UsageError(
            "edges outside the circuit need a value: give either corrupted= (token ids of the corrupted prompts) or "
            "mean_over= (a task)."
        )
    check_type("mean_over", mean_over, Task)
    values = ablation_of("mean" if circuit.ablation == CORRUPTED else circuit.ablation, model, mean_over)
    assert values is not None  # None is the corrupted prompt
    return values


def _hook(model: nn.Module, run: AblatedRun, until_the_end: ExitStack) -> None:
    """Put the hooks on a ``transformers`` model or bridge, and switch off its cache."""
    model = getattr(model, "original_model", model)
    blocks = _layers_of(model, run.model.arch.n_layers)
    until_the_end.callback(model.register_forward_pre_hook(_begin(run), with_kwargs=True).remove)
    for index, block in enumerate(blocks):
        until_the_end.callback(block.register_forward_hook(_replace(run, index), with_kwargs=True).remove)
    for settings in (model.config, getattr(model, "generation_config", None)):
        if hasattr(settings, "use_cache"):
            until_the_end.enter_context(patch.object(settings, "use_cache", False))


def _layers_of(model: nn.Module, n_layers: int) -> nn.ModuleList:
    """The list of layers: the outermost one of this length that is not part of what sees or hears."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers and not re.search("vision|audio", name):
            return module
    raise InputError(f"this model has no list of {n_layers} layers, to put hooks on. Use a model of transformers.")


def _begin(run: AblatedRun) -> Callable[..., None]:
    """The hook in front of the model, which sees the prompts."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs.get("input_ids")
        mask, cache = kwargs.get("attention_mask"), kwargs.get("past_key_values")
        if not isinstance(ids, Tensor):
            raise UsageError("a model in gp.ablated is called with token ids (input_ids): got none.")
        if cache is not None and cache.get_seq_length():
            raise UsageError("a model in gp.ablated computes all positions: call it with use_cache=False.")
        if isinstance(mask, Tensor) and mask.ndim == 2 and bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise UsageError(
                "prompts in gp.ablated are padded on the right, and not at all to generate text: got an attention mask "
                "with a 0 before a 1. Generate from prompts of the same length, or one by one."
            )
        run.begin(ids)

    return hook


def _replace(run: AblatedRun, index: int) -> Callable[..., Any]:
    """The hook of a layer: what it returns is computed anew from the residual stream before it."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        resid = run.layer(index, args[0] if args else kwargs["hidden_states"])
        return resid if isinstance(output, Tensor) else (resid, *output[1:])

    return hook
