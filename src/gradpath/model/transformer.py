"""One decoder-only transformer that exposes the output of every node and the input of every target.

A layer computes, on the residual stream x (one column per position)::

    y = norm(x);  q, k, v = W_qkv y + b        one product for all heads
    z = softmax(scale q k^T) v                 per head, d_head wide
    x = x + W_O z + b_O                        head h writes W_O[:, h] z_h
    x = x + W_out act(W_in norm(x) + b) + b    the MLP, gated or not, or a mixture of experts (``Experts``)

Families change single lines of this. In a *parallel* block the MLP reads the x that attention read. Queries, keys and
values may be clipped, and queries and keys normalised, before they are rotated. Positions enter as vectors that are
added to the token embeddings, as rotations, as a bias of the attention logits, or, in some layers, not at all. A norm
may follow attention or the MLP, before the residual stream. Such a norm divides the sum over all heads, W_O z, by the
root mean square r of that sum, so head h writes gain * W_O[:, h] (z_h / r), and the outputs of the heads still add up
to what reaches the residual stream.

The forward pass never separates heads. A ``Run`` keeps the results of the products, from which ``attribution``
computes the output of a single head, or the gradient at its input.

Parameters never require gradients, and nothing here changes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import InputError
from gradpath.graph import Graph
from gradpath.model.architecture import (
    ACTIVATIONS,
    CALCULUS,
    PARTS,
    Architecture,
    Experts,
    Latent,
    Layer,
    Rotary,
    Rules,
    fields_of,
    run_experts,
)
from gradpath.model.tokenizer import Prompts, Tokenizer

if TYPE_CHECKING:
    from gradpath.model.inspection import Prediction

Rows = slice | Tensor  # some rows of a batch: a stretch of them, or their indices
Weights = TypeVar("Weights", "Transformer", Layer, Rotary, Experts, Latent)


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is float64. Sums are accumulated in this type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class PositionInfo:
    """Attention masks and rotations for the positions of a run."""

    # Per window: -inf where attention is not allowed, (pos, start + pos); with a bias, (head, pos, start + pos).
    masks: dict[int | None, Tensor]
    rotations: list[tuple[Tensor, Tensor]]  # cos and sin, (pos, 1, rotated dimensions)

    def of_heads(self, heads: Sequence[int]) -> PositionInfo:
        """The masks of these heads, where masks differ between heads."""
        masks = {window: mask if mask.ndim == 2 else mask[heads] for window, mask in self.masks.items()}
        return PositionInfo(masks, self.rotations)


class Past(NamedTuple):
    """Rotated keys, and values, of one layer at consecutive positions, (batch, head, pos, d_head)."""

    keys: Tensor
    values: Tensor

    def after(self, earlier: Past | None) -> Past:
        """These positions with the earlier ones in front of them."""
        if earlier is None:
            return self
        return Past(torch.cat([earlier.keys, self.keys], 2), torch.cat([earlier.values, self.values], 2))


@dataclass(frozen=True)
class LayerRun:
    """Inputs and outputs of one layer in a run.

    ``q``, ``k``, ``v`` are the projections before any norm or rotation, repeated for every query head that shares them.
    ``y`` is the normalised input of attention and ``rstd`` its 1/sigma. ``written`` is ``z``, divided by the
    denominator of the norm after attention if there is one: ``Layer.w_write`` maps it to the outputs of the heads.
    """

    attn_in: Tensor  # (batch, pos, d_model), before the norm
    y: Tensor  # (batch, pos, d_model)
    rstd: Tensor  # (batch, pos, 1)
    q: Tensor  # (batch, pos, head, d_qkv)
    k: Tensor
    v: Tensor
    z: Tensor  # (batch, pos, head, d_head)
    written: Tensor  # (batch, pos, head, d_head)
    mlp_in: Tensor  # (batch, pos, d_model), before the norm
    mlp_out: Tensor  # (batch, pos, d_model)
    past: Past  # keys and values at the positions of this run


@dataclass(frozen=True)
class Run:
    """A forward pass over consecutive positions."""

    layers: list[LayerRun]
    final_in: Tensor  # (batch, pos, d_model): the input of ``logits``, before the norm


@dataclass(frozen=True, eq=False, repr=False)
class Transformer:
    """A decoder-only language model: architecture, weights, tokenizer, and how to run it."""

    arch: Architecture
    layers: tuple[Layer, ...]
    embedding: Float[Tensor, "vocab d_model"]
    unembedding: Float[Tensor, "vocab d_model"]
    final_gain: Float[Tensor, " d_model"]
    final_shift: Float[Tensor, " d_model"] | None = None
    positions: Float[Tensor, "max_pos d_model"] | None = None
    rotary: tuple[Rotary, ...] = ()
    attention_bias: Float[Tensor, "head max_pos"] | None = None  # of each head's logits for a key, by position
    embedding_scale: float = 1.0
    unembedding_bias: Float[Tensor, " vocab"] | None = None
    tokenizer: Tokenizer | None = None
    name: str = ""
    rules: Rules = CALCULUS

    def __repr__(self) -> str:
        a = self.arch
        shape = f"{a.n_layers} layers of {a.n_heads} heads, {self.graph.n_edges:,} edges"
        return f"<Transformer {self.name or a.family}: {shape}, {self.dtype_name} on {self.device}>"

    def __str__(self) -> str:
        a = self.arch
        attention = "attention and MLP in parallel" if a.parallel else "attention, then MLP"
        bos = "with" if self.tokenizer is not None and self.tokenizer.prepend is not None else "without"
        return "\n".join(
            [
                f"{self.name or 'A model'} ({a.family})",
                f"  shape      {a.n_layers} layers of {a.n_heads} heads and an MLP ({attention})",
                f"  width      {self.embedding.shape[1]:,}, with {len(self.embedding):,} tokens",
                f"  graph      {self.graph.n_sources + 1:,} nodes, {self.graph.n_edges:,} edges",
                f"  tokenizer  {'none' if self.tokenizer is None else f'{bos} BOS in front of prompts'}",
                f"  weights    {self.dtype_name} on {self.device}",
            ]
        )

    @cached_property
    def graph(self) -> Graph:
        """The nodes and edges of the model."""
        return Graph(self.arch.n_layers, self.arch.n_heads, self.arch.parallel)

    @property
    def identity(self) -> tuple[object, ...]:
        """The values by which distributed processes check that they run the same model."""
        return self.name, self.digest

    @cached_property
    def digest(self) -> str:
        """A digest of the architecture and of every weight. It does not depend on name, folder or device."""
        gains = [rotary.gain for rotary in self.rotary]
        digest = sha256(f"({self.arch.fingerprint}, {self.embedding_scale!r}, {gains!r})".encode())
        parts = {f"layer {i}.{name}": x for i, layer in enumerate(self.layers) for name, x in fields_of(layer).items()}
        parts |= {f"rotary {i}": rotary.frequencies for i, rotary in enumerate(self.rotary)}
        parts |= {name: x for name, x in vars(self).items() if isinstance(x, Tensor)}
        if self.unembedding.data_ptr() == self.embedding.data_ptr():
            parts["unembedding"] = "the embedding"
        for name, x in sorted(parts.items()):
            digest.update(repr((name, tuple(x.shape), x.dtype) if isinstance(x, Tensor) else (name, x)).encode())
            if isinstance(x, Tensor):
                digest.update(x.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()[:32]

    @property
    def heads_share_a_norm(self) -> bool:
        """Whether a norm over all heads of a layer lets the input of one head change the output of another."""
        return self.arch.qk_norm == "layer" or any(layer.attn_gain is not None for layer in self.layers)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def dtype_name(self) -> str:
        """The type of the weights as options and files write it, such as ``float32``."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def max_positions(self) -> int | None:
        """The length of the longest prompt, if there is a limit."""
        limits = [] if self.arch.max_tokens is None else [self.arch.max_tokens]
        limits += [] if self.positions is None else [len(self.positions)]
        limits += [] if self.attention_bias is None else [self.attention_bias.shape[1]]
        return min(limits, default=None)

    def logits(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """Logits at every position, without gradients.

        Args:
            ids: Token ids on the device of the model.

        Returns:
            The logits, on the same device.
        """
        with torch.no_grad():
            return self.unembed(self.final_in(self.embed(ids)))

    def predict(self, text: Prompts, top: int = 5) -> list[Prediction]:
        """The most likely next tokens of a prompt.

        Args:
            text: The prompt, as text or as token ids (pos,).
            top: How many tokens to return.

        Returns:
            The tokens, most likely first, each with its probability and logit.
        """
        from gradpath.model.inspection import predict

        return predict(self, text, top)

    def attention(self, prompts: Prompts, node: str) -> Float[Tensor, "prompt pos pos"]:
        """The attention pattern of a head.

        Args:
            prompts: One or several prompts: text, or token ids (prompt, pos).
            node: The head, such as ``a5.h1``.

        Returns:
            The weight of each earlier position (last axis) at each position; zero after the end of a prompt.
        """
        from gradpath.model.inspection import attention

        return attention(self, prompts, node)

    def outputs(self, prompts: Prompts, node: str) -> Float[Tensor, "prompt pos d_model"]:
        """The output of a node, which it adds to the residual stream.

        Args:
            prompts: One or several prompts: text, or token ids (prompt, pos).
            node: ``input``, a head such as ``a5.h1``, or an MLP such as ``m3``. The output of an MLP includes its bias;
                the bias of attention belongs to no head.

        Returns:
            The output at each position; zero after the end of a prompt.
        """
        from gradpath.model.inspection import outputs

        return outputs(self, prompts, node)

    def logit_lens(self, prompts: Prompts, position: int = -1) -> Float[Tensor, "prompt layer vocab"]:
        """Apply the final norm and the unembedding to the residual stream before every layer and after the last.

        Args:
            prompts: One or several prompts: text, or token ids (prompt, pos).
            position: The position in each prompt; negative numbers count from its end.

        Returns:
            Logits at 1 + n_layers places of the stream. The last ones are the logits of the model.
        """
        from gradpath.model.inspection import logit_lens

        return logit_lens(self, prompts, position)

    def embed(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """The output of ``input``: token embeddings without positions."""
        size = len(self.embedding)
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):  # -1 would be the last token
            raise InputError(
                f"a token id of this model is 0 to {size - 1}: got {int(ids.min())} to {int(ids.max())}. "
                "Use the ids of its own tokenizer."
            )
        x = self.embedding[ids]
        if self.embedding_scale == 1.0:
            return x
        return x * x.new_tensor(self.embedding_scale)  # rounded to the model's precision first, as in Gemma

    def run(self, x: Float[Tensor, "batch pos d_model"], *, start: int = 0, past: Sequence[Past] = ()) -> Run:
        """Run token embeddings through all layers.

        Args:
            x: Embeddings of the tokens at positions start, start + 1, ...
            start: The position of the first of them.
            past: Keys and values of the positions before start, one per layer, as ``prefix`` gives them.

        Returns:
            The run: inputs and outputs of every layer, and the final residual stream.
        """
        layers, resid = [], x
        for run, resid in self.layer_runs(x, start=start, past=past):  # noqa: B007  (the last one is used)
            layers.append(run)
        return Run(layers, resid)

    def layer_runs(
        self, x: Float[Tensor, "batch pos d_model"], *, start: int = 0, past: Sequence[Past] = ()
    ) -> Iterator[tuple[LayerRun, Tensor]]:
        """As ``run``, layer by layer, with the residual stream after each layer; the caller keeps what it needs."""
        info, resid = self.position_info(start, x.shape[1]), self.with_positions(x, start)
        for index, layer in enumerate(self.layers):
            run, resid = self._run_layer(layer, resid, info, past[index] if past else None)
            yield run, resid

    def final_in(self, x: Float[Tensor, "batch pos d_model"], *, start: int = 0, past: Sequence[Past] = ()) -> Tensor:
        """The input of ``logits``, (batch, pos, d_model); nothing else of the run is kept."""
        resid = x
        for _, resid in self.layer_runs(x, start=start, past=past):  # noqa: B007  (the last one is used)
            pass
        return resid

    def prefix(self, x: Float[Tensor, "batch pos d_model"]) -> list[Past]:
        """Keys and values of positions 0, 1, ...: everything that later positions read from them."""
        return self.run_prefix(x)[0]

    def run_prefix(
        self, x: Float[Tensor, "batch pos d_model"]
    ) -> tuple[list[Past], Float[Tensor, "batch pos d_model"]]:
        """Keys and values of positions 0, 1, ..., and the residual stream before the last layer.

        Queries and MLP of the last layer are not computed, because they affect no later position.
        """
        info = self.position_info(0, x.shape[1])
        resid, past = self.with_positions(x, 0), []
        for layer in self.layers[:-1]:
            run, resid = self._run_layer(layer, resid, info, None)
            past.append(run.past)
        layer = self.layers[-1]
        _, k, v = self.project(layer, self.read_norm(resid)[0])
        return [*past, self.keys_and_values(layer, k, v, info)], resid

    def _run_layer(
        self, layer: Layer, resid: Tensor, info: PositionInfo, before: Past | None
    ) -> tuple[LayerRun, Tensor]:
        y, rstd = self.read_norm(resid)
        q, k, v = self.project(layer, y)
        past = self.keys_and_values(layer, k, v, info)
        z = self.attend(layer, self.queries(layer, q, info), past.after(before), info)
        attn_out, written = self.attention_out(layer, z)
        after = resid + attn_out
        mlp_in = resid if self.arch.parallel else after
        # An alias, so that the gradient with respect to it came through the MLP only.
        mlp_in = mlp_in.view_as(mlp_in)
        mlp_out = self.mlp(layer, mlp_in)
        return LayerRun(resid, y, rstd, q, k, v, z, written, mlp_in, mlp_out, past), after + mlp_out

    def above(self, layer: int) -> Transformer:
        """The layers from this one on, as a model whose input is the residual stream before them."""
        return replace(self, layers=self.layers[layer:], positions=None)

    def with_positions(self, x: Tensor, start: int) -> Tensor:
        """The residual stream for token embeddings at positions start, start + 1, ..."""
        return x if self.positions is None else x + self.positions[start : start + x.shape[1]]

    def norm(self, x: Tensor, eps: float | None = None) -> tuple[Tensor, Tensor]:
        """The normalised x and 1/sigma, (..., d_model) and (..., 1), without gain and shift (``fold_norm``)."""
        eps = self.arch.norm_eps if eps is None else eps
        if self.arch.norm == "layer":
            y, _, rstd = torch.native_layer_norm(x, [x.shape[-1]], None, None, eps)
            if self.rules.norm:
                y = (at_least_float32(x - x.mean(-1, keepdim=True)) * rstd.detach()).to(x.dtype)
            return y, rstd
        wide = at_least_float32(x)
        square = wide.square().mean(-1, keepdim=True)
        # If the squares overflow, rstd would be 0 and hide it: 0 * inf makes it NaN.
        rstd = (square + eps).rsqrt() + 0 * square.detach()
        rstd = rstd.detach() if self.rules.norm else rstd
        return (wide * rstd).to(x.dtype), rstd

    def read_norm(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The norm before attention and MLP, if the family has one, and its 1/sigma."""
        return self.norm(x) if self.arch.norm_before else (x, torch.ones_like(x[..., :1]))

    def project(self, layer: Layer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every query head, or its latents, each (batch, pos, head, d_qkv)."""
        n_heads, blocks = self.arch.n_heads, self.arch.qkv_blocks
        qkv = F.linear(y, layer.w_qkv, layer.b_qkv)
        qkv = qkv.view(*y.shape[:-1], -1, self.arch.d_qkv)
        # A copy for each query head, so that each has a separate gradient and separate edges.
        q, k, v = (
            x if n_blocks == n_heads else x.repeat_interleave(n_heads // n_blocks, -2)
            for x, n_blocks in zip(torch.split(qkv, blocks, dim=-2), blocks, strict=True)
        )
        return q, k, v

    def head_output_weights(self, layer: int) -> Float[Tensor, "d_model head d_head"]:
        """The part of ``Layer.w_write`` of each head: the map from its ``LayerRun.written`` to the residual stream."""
        return self.layers[layer].w_write.view(self.arch.d_model, self.arch.n_heads, self.arch.d_head)

    def queries(self, layer: Layer, q: Tensor, info: PositionInfo) -> Tensor:
        """Projected queries (batch, pos, head, d_qkv), normalised and rotated, as (batch, head, pos, d_head)."""
        if layer.latent is not None:
            return self._rotate(layer, layer.latent.queries(q, self.norm), info).transpose(1, 2)
        return self._rotate(layer, self._qk_norm(self._clip(q), layer.q_gain), info).transpose(1, 2)

    def keys_and_values(self, layer: Layer, k: Tensor, v: Tensor, info: PositionInfo) -> Past:
        """Projected keys, normalised and rotated, and values."""
        if (latent := layer.latent) is not None:
            rotated = self._rotate(layer, latent.keys(k, self.norm), info)
            return Past(rotated.transpose(1, 2), latent.values(v, self.norm).transpose(1, 2))
        rotated = self._rotate(layer, self._qk_norm(self._clip(k), layer.k_gain), info)
        return Past(rotated.transpose(1, 2), self._clip(v).transpose(1, 2))

    def _clip(self, x: Tensor) -> Tensor:
        """Clip projected queries, keys or values, if the family does."""
        clip = self.arch.qkv_clip
        return x if clip is None else self._elementwise(lambda x: x.clamp(-clip, clip), x)

    def _qk_norm(self, x: Tensor, gain: Tensor | None) -> Tensor:
        """Normalise queries or keys (batch, pos, head, d_head), per head or over all heads of the layer."""
        if gain is None:
            return x
        if self.arch.qk_norm == "head":
            return self.norm(x)[0] * gain
        # Every key is repeated the same number of times, which does not change the mean square.
        return self.norm(x.flatten(-2))[0].view_as(x) * gain

    def _rotate(self, layer: Layer, x: Tensor, info: PositionInfo) -> Tensor:
        """Rotary embedding of queries or keys (batch, pos, head, d_head), if the model has one."""
        if not info.rotations or layer.rotary is None:
            return x
        cos, sin = info.rotations[layer.rotary]
        width = cos.shape[-1]
        a, b = x[..., :width].chunk(2, -1)
        rotated = x[..., :width] * cos + torch.cat([-b, a], -1) * sin
        return rotated if width == x.shape[-1] else torch.cat([rotated, x[..., width:]], -1)

    def attend(self, layer: Layer, q: Tensor, past: Past, info: PositionInfo) -> Tensor:
        """The values that each head gathers for queries (batch, head, pos, d_head): z, (batch, pos, head, d_head)."""
        mask, cap, keys = info.masks[layer.window], self.arch.attention_cap, past.keys
        if self.rules.attention:
            q, keys = q.detach(), keys.detach()
        fused = cap is None and layer.sinks is None and not self.rules.products and self.rules.temperature == 1
        if fused:
            z = F.scaled_dot_product_attention(q, keys, past.values, attn_mask=mask, scale=layer.scale)
        else:
            z = self.attention_weights(layer, q, keys, info).to(q.dtype) @ past.values
            z = _halved(z) if self.rules.products else z
        return z.transpose(1, 2)

    def attention_weights(self, layer: Layer, q: Tensor, keys: Tensor, info: PositionInfo) -> Tensor:
        """The attention patterns, (batch, head, query pos, key pos), of queries and rotated keys as in ``attend``."""
        logits, cap = q @ keys.transpose(-1, -2) * layer.scale, self.arch.attention_cap
        logits = _halved(logits) if self.rules.products else logits
        logits = logits if cap is None else self._cap(logits, cap)
        logits = at_least_float32(logits + info.masks[layer.window])
        if layer.sinks is None:
            return self._softmax(logits)
        sinks = layer.sinks.to(logits)[:, None, None].expand(*logits.shape[:-1], 1)
        return self._softmax(torch.cat([logits, sinks], -1))[..., :-1]

    def attention_out(self, layer: Layer, z: Tensor) -> tuple[Tensor, Tensor]:
        """The output of attention, (batch, pos, d_model), and ``LayerRun.written``."""
        out = F.linear(z.flatten(-2), layer.w_o, layer.b_o)
        if layer.attn_gain is None:
            return out, z
        y, rstd = self.norm(out)
        return y * layer.attn_gain, (z * rstd[..., None]).to(z.dtype)

    def mlp(self, layer: Layer, x: Tensor) -> Tensor:
        """The output of the MLP for a residual stream x that is not normalised yet."""
        y = self.read_norm(x)[0]
        out = self.shared_expert(layer, y)
        if layer.experts is not None:
            out = out + run_experts(layer.experts, y, self.feed_forward, constant_weights=self.rules.attention)
        return out if layer.mlp_gain is None else self.norm(out)[0] * layer.mlp_gain

    def shared_expert(self, layer: Layer, y: Tensor) -> Tensor:
        """The part of the MLP that is the same for all tokens: all of it, or the shared expert."""
        out = self.feed_forward(y, layer.w_in, layer.b_in, layer.w_out, layer.b_out)
        if layer.experts is None or layer.experts.shared_gate is None:
            return out
        gate = F.linear(y, layer.experts.shared_gate).sigmoid()
        return (gate.detach() if self.rules.attention else gate) * out

    def feed_forward(self, y: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None) -> Tensor:
        """An MLP, or an expert, on normalised inputs."""
        activation = ACTIVATIONS[self.arch.activation]
        hidden = F.linear(y, w_in, b_in)
        if self.arch.gated:
            gate, value = hidden.chunk(2, -1)
            if (clamp := self.arch.gate_clamp) is None:
                hidden = self._elementwise(activation, gate) * value
            else:
                value = 1 + self._elementwise(lambda x: x.clamp(-clamp, clamp), value)
                hidden = self._elementwise(lambda x: activation(x.clamp(max=clamp)), gate) * value
            hidden = _halved(hidden) if self.rules.gate else hidden
        else:
            hidden = self._elementwise(activation, hidden)
        return F.linear(hidden, w_out, b_out)

    def final_norm(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """What the unembedding reads: the final residual stream, normalised."""
        y = self.norm(x)[0] * self.final_gain
        return y if self.final_shift is None else y + self.final_shift

    def unembed(
        self, x: Float[Tensor, "*batch d_model"], tokens: Int[Tensor, " token"] | None = None
    ) -> Float[Tensor, "*batch vocab"]:
        """Logits for the final residual stream, of all tokens or of those given.

        This is costly: pass only the positions and the tokens that are needed.
        """
        weights, bias, cap = self.unembedding, self.unembedding_bias, self.arch.logit_cap
        if tokens is not None:
            tokens = tokens.to(weights.device)
            weights, bias = weights[tokens], None if bias is None else bias[tokens]
        logits = F.linear(self.final_norm(x), weights, bias)
        return logits if cap is None else self._cap(logits, cap)

    def _cap(self, x: Tensor, cap: float) -> Tensor:
        return self._elementwise(lambda x: cap * torch.tanh(x / cap), x)

    def _softmax(self, x: Tensor) -> Tensor:
        """The softmax over the last axis, with the slope at the temperature of the rules."""
        t = self.rules.temperature
        if t == 1:
            return x.softmax(-1)
        # T softmax(x / T) has the slope of a softmax at x / T, without a factor 1 / T.
        soft = t * (x / t).softmax(-1)
        return x.detach().softmax(-1) + (soft - soft.detach())

    def _elementwise(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """f(x); under the rule for activations the derivative is replaced by f(x) / x."""
        if not self.rules.activation:
            return f(x)
        value = f(x.detach())
        slope = torch.where(x == 0, 0.5, value / x).detach()
        return value + (x - x.detach()) * slope

    def position_info(self, start: int, length: int) -> PositionInfo:
        """Masks and rotations for positions start, start + 1, ... of a prompt that begins at 0."""
        limit = self.max_positions
        if limit is not None and start + length > limit:
            raise InputError(
                f"the model reads at most {limit} tokens: a prompt has {start + length}. "
                "Shorten it, or use a model with a longer context."
            )
        query = torch.arange(start, start + length, device=self.device)[:, None]
        key = torch.arange(start + length, device=self.device)
        masks, rotations = {}, []
        for window in {layer.window for layer in self.layers}:
            hidden = (key > query) if window is None else (key > query) | (key <= query - window)
            masks[window] = self._bias(start, start + length).masked_fill(hidden, -torch.inf)
        for rotary in self.rotary:
            frequency = rotary.frequencies.to(torch.promote_types(self.dtype, torch.float32))
            angle = (query * frequency).tile(2)[:, None]  # (pos, 1, rotated dimensions)
            cos, sin = angle.cos() * rotary.gain, angle.sin() * rotary.gain
            rotations.append((cos.to(self.dtype), sin.to(self.dtype)))
        return PositionInfo(masks, rotations)

    def _bias(self, start: int, end: int) -> Tensor:
        """The bias of attention logits for queries from start on and keys from 0 on, (pos, end) or (head, pos, end)."""
        if self.attention_bias is None:
            return self.embedding.new_zeros(end - start, end)
        bias = self.attention_bias[:, None, :end].to(torch.promote_types(self.dtype, torch.float32))
        # Relative to the position of the query: the same patterns, and close keys keep their precision.
        return (bias - bias[..., start:].mT).to(self.dtype)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Transformer:
        """The same model on another device or in another precision.

        Args:
            device: The device for all weights; None keeps each where it is.
            dtype: The precision; None keeps the current one.

        Returns:
            A new model. This one is not changed.
        """
        layers = tuple(_move(layer, device, dtype) for layer in self.layers)
        # Angles and biases grow with the position, and half precision would round them too much: they stay float32.
        rotary = tuple(_move(rotary, device) for rotary in self.rotary)
        bias = None if self.attention_bias is None else self.attention_bias.to(device)
        return replace(_move(self, device, dtype), layers=layers, rotary=rotary, attention_bias=bias)


def _move(weights: Weights, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Weights:
    """A copy of a dataclass with its tensors moved."""
    moved: Any = {name: x.to(device, dtype) for name, x in vars(weights).items() if isinstance(x, Tensor)}
    if isinstance(weights, Layer):
        parts = {name: getattr(weights, name) for name in PARTS}
        moved |= {name: _move(x, device, dtype) for name, x in parts.items() if x is not None}
    if isinstance(weights, Experts) and weights.choice_bias is not None:
        moved["choice_bias"] = weights.choice_bias.to(device)  # its differences are too small for half precision
    return replace(weights, **moved)


def _halved(x: Tensor) -> Tensor:
    """x, with half of its gradient."""
    return (x + x.detach()) / 2
