"""One decoder-only transformer that shows what every node writes and what every target reads.

A layer computes, on the residual stream x (one column per position)::

    y = norm(x);  q, k, v = W_qkv y + b        one product for all heads
    z = softmax(scale q k^T) v                 per head, d_head wide
    x = x + W_O z + b_O                        head h writes W_O[:, h] z_h
    x = x + W_out act(W_in norm(x) + b) + b    the MLP, gated or not

Families change single lines of this. In a *parallel* block the MLP reads the x that attention read. Queries
and keys may be normalised before they are rotated. A norm may follow attention or the MLP, on its way to the
residual stream; it divides the sum over all heads, W_O z, by that sum's root mean square r, so that
head h writes gain * W_O[:, h] (z_h / r): what the heads write then still adds up to what reaches the stream.

The forward pass is this and nothing more: heads are never split apart in it. A ``Run`` keeps what the
products gave, and whoever wants a head's own write or the gradient at a head's own read forms it
from there (see ``attribution``).

Two exact rewritings are made once, when a model is loaded (``folded``). A norm's gain and shift go
into the projection that follows, so a norm has no parameters. Behind a LayerNorm, the rows of that
projection are centred: the norm's output has mean zero, so this changes nothing, and a gradient that
comes back through the projection has mean zero too. Both kinds of norm then have the same Jacobian,
``(I - y y^T / d_model) / sigma``.

Parameters never ask for gradients, and nothing here changes the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone knows it by)
from jaxtyping import Float, Int
from torch import Tensor

from gradpath.errors import InputError, UsageError
from gradpath.graph import Graph
from gradpath.model.architecture import (
    ACTIVATIONS,
    CALCULUS,
    Architecture,
    Layer,
    Rotary,
    Rules,
    at_least_float32,
    same_device,
    to_device_of,
)
from gradpath.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Place:
    """Where a run stands in the prompt: what its positions see, and what rotates them."""

    masks: dict[int | None, Tensor]  # per window: -inf where a position may not look, (pos, start + pos)
    rotations: list[tuple[Tensor, Tensor]]  # cos and sin, (pos, 1, dimensions that turn)

    def to_device_of(self, other: Tensor) -> Place:
        """The same on the device of a layer's weights."""
        if all(same_device(mask, other) for mask in self.masks.values()):
            return self
        masks = {window: to_device_of(mask, other) for window, mask in self.masks.items()}
        return Place(masks, [(to_device_of(cos, other), to_device_of(sin, other)) for cos, sin in self.rotations])


class Past(NamedTuple):
    """Keys (rotated) and values of one layer at earlier positions, (batch, head, pos, d_head)."""

    keys: Tensor
    values: Tensor

    def behind(self, earlier: Past | None) -> Past:
        """These positions with the earlier ones in front of them."""
        if earlier is None:
            return self
        return Past(torch.cat([earlier.keys, self.keys], 2), torch.cat([earlier.values, self.values], 2))


@dataclass(frozen=True)
class LayerRun:
    """What one layer read and wrote; the shapes are the run's (batch, pos, ...).

    ``q``, ``k``, ``v`` are the projections before any norm or rotation, k and v repeated for every query
    head. ``y`` is the normalised input of attention and ``rstd`` its 1/sigma. ``written`` is ``z``, over what
    a norm after attention divides by if there is one: times ``Layer.w_write`` it is what each head writes.
    """

    attn_in: Tensor  # (batch, pos, d_model), before the norm
    y: Tensor  # (batch, pos, d_model)
    rstd: Tensor  # (batch, pos, 1)
    q: Tensor  # (batch, pos, head, d_head)
    k: Tensor
    v: Tensor
    z: Tensor  # (batch, pos, head, d_head)
    written: Tensor  # (batch, pos, head, d_head)
    mlp_in: Tensor  # (batch, pos, d_model), before the norm
    mlp_out: Tensor  # (batch, pos, d_model)
    past: Past  # this run's own keys and values


@dataclass(frozen=True)
class Run:
    """A forward pass over consecutive positions."""

    layers: list[LayerRun]
    final_in: Tensor  # (batch, pos, d_model): what ``logits`` reads, before the norm


@dataclass(frozen=True, repr=False)
class Transformer:
    """A decoder-only language model: architecture, weights, tokenizer, and how to run it.

    Layers may lie on several devices. What a layer computes is then on its own; what comes before and after
    them all, token embeddings, ``Run.final_in`` and logits, is on ``device``, that of the embedding.
    """

    arch: Architecture
    layers: tuple[Layer, ...]
    embedding: Float[Tensor, "vocab d_model"]
    unembedding: Float[Tensor, "vocab d_model"]
    final_gain: Float[Tensor, " d_model"]
    final_shift: Float[Tensor, " d_model"] | None = None
    positions: Float[Tensor, "max_pos d_model"] | None = None
    rotary: tuple[Rotary, ...] = ()
    embedding_scale: float = 1.0
    unembedding_bias: Float[Tensor, " vocab"] | None = None
    tokenizer: Tokenizer | None = None
    name: str = ""
    rules: Rules = CALCULUS

    def __repr__(self) -> str:
        """One line: the weights would fill a thousand."""
        a, kind = self.arch, str(self.dtype).removeprefix("torch.")
        shape = f"{a.n_layers} layers of {a.n_heads} heads, {self.graph.n_edges:,} edges"
        return f"<Transformer {self.name or a.family}: {shape}, {kind} on {self.device}>"

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.arch.n_layers, self.arch.n_heads, self.arch.parallel)

    @property
    def identity(self) -> tuple[object, ...]:
        """A few facts and numbers by which processes can tell that they hold the same model."""
        some = [self.embedding[-1, :8], self.final_gain[:8], self.layers[-1].w_out[-1, :8]]
        return self.name, repr(self.arch), str(self.dtype), [x.tolist() for x in some]

    @property
    def heads_share_a_norm(self) -> bool:
        """Whether what one head reads changes what others of its layer write, by a norm over all of them."""
        return self.arch.qk_norm == "layer" or any(layer.attn_gain is not None for layer in self.layers)

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def max_positions(self) -> int | None:
        return None if self.positions is None else len(self.positions)

    def embed(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """What ``input`` writes: the token embedding alone."""
        x = self.embedding[ids]
        if self.embedding_scale == 1.0:
            return x
        return x * x.new_tensor(self.embedding_scale)  # rounded to the model's precision first, as Gemma is

    def run(self, x: Float[Tensor, "batch pos d_model"], *, start: int = 0, past: Sequence[Past] = ()) -> Run:
        """Run token embeddings at positions start, start + 1, ... behind the keys and values of ``past``."""
        place = self.place(start, x.shape[1])
        resid = self.with_positions(x, start)
        layers = []
        for index, layer in enumerate(self.layers):
            seen, resid = self._run_layer(layer, resid, place, past[index] if past else None)
            layers.append(seen)
        return Run(layers, to_device_of(resid, x))

    def above(self, layer: int) -> Transformer:
        """The layers from this one on, as a model that runs the residual stream below it."""
        return replace(self, layers=self.layers[layer:], positions=None)

    def prefix(self, x: Float[Tensor, "batch pos d_model"]) -> list[Past]:
        """Keys and values of positions 0, 1, ...: all that later positions ever read of them.

        The last layer stops there: its queries and its MLP would reach nothing.
        """
        place = self.place(0, x.shape[1])
        resid = self.with_positions(x, 0)
        past = []
        for layer in self.layers[:-1]:
            seen, resid = self._run_layer(layer, resid, place, None)
            past.append(seen.past)
        layer = self.layers[-1]
        _, k, v = self.project(layer, self.read_norm(to_device_of(resid, layer.w_qkv))[0])
        return [*past, self.keys_and_values(layer, k, v, place.to_device_of(layer.w_qkv))]

    def _run_layer(self, layer: Layer, resid: Tensor, place: Place, before: Past | None) -> tuple[LayerRun, Tensor]:
        resid, place = to_device_of(resid, layer.w_qkv), place.to_device_of(layer.w_qkv)
        y, rstd = self.read_norm(resid)
        q, k, v = self.project(layer, y)
        own = self.keys_and_values(layer, k, v, place)
        z = self.attend(layer, self.queries(layer, q, place), own.behind(before), place)
        attn_out, written = self.attention_out(layer, z)
        after = resid + attn_out
        mlp_in = resid if self.arch.parallel else after
        # An alias, so that a gradient asked for here is the one that came through the MLP alone.
        mlp_in = mlp_in.view_as(mlp_in)
        mlp_out = self.mlp(layer, mlp_in)
        return LayerRun(resid, y, rstd, q, k, v, z, written, mlp_in, mlp_out, own), after + mlp_out

    def norm(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised x and 1/sigma, (..., d_model) and (..., 1). No gain, no shift: see ``folded``."""
        if self.arch.norm == "layer":
            y, _, rstd = torch.native_layer_norm(x, [x.shape[-1]], None, None, self.arch.norm_eps)
            if self.rules.norm:
                y = (at_least_float32(x - x.mean(-1, keepdim=True)) * rstd.detach()).to(x.dtype)
            return y, rstd
        wide = at_least_float32(x)
        square = wide.square().mean(-1, keepdim=True)
        # 0 times infinity: squares that overflow must not pass for a norm that makes everything zero.
        rstd = (square + self.arch.norm_eps).rsqrt() + 0 * square.detach()
        rstd = rstd.detach() if self.rules.norm else rstd
        return (wide * rstd).to(x.dtype), rstd

    def read_norm(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What attention and MLP make of the residual stream before they project it."""
        return self.norm(x) if self.arch.norm_before else (x, torch.ones_like(x[..., :1]))

    def project(self, layer: Layer, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every query head, each (batch, pos, head, d_head)."""
        a = self.arch
        qkv = F.linear(y, layer.w_qkv, layer.b_qkv)
        qkv = qkv.view(*y.shape[:-1], -1, a.d_head)
        q, k, v = torch.split(qkv, [a.n_heads, a.n_kv_heads, a.n_kv_heads], dim=-2)
        if a.n_kv_heads < a.n_heads:
            # One copy for each query head, so that each has a gradient, and so an edge, of its own.
            group = a.n_heads // a.n_kv_heads
            k, v = k.repeat_interleave(group, -2), v.repeat_interleave(group, -2)
        return q, k, v

    def queries(self, layer: Layer, q: Tensor, place: Place) -> Tensor:
        """Projected queries (batch, pos, head, d_head) as they meet the keys, (batch, head, pos, d_head)."""
        return self.rotate(layer, self._qk_norm(q, layer.q_gain), place).transpose(1, 2)

    def keys_and_values(self, layer: Layer, k: Tensor, v: Tensor, place: Place) -> Past:
        turned = self.rotate(layer, self._qk_norm(k, layer.k_gain), place)
        return Past(turned.transpose(1, 2), v.transpose(1, 2))

    def _qk_norm(self, x: Tensor, gain: Tensor | None) -> Tensor:
        """Normalise queries or keys (batch, pos, head, d_head), head by head or a layer's heads as one."""
        if gain is None:
            return x
        if self.arch.qk_norm == "head":
            return self.norm(x)[0] * gain
        # Keys were repeated for every query head, each the same number of times: the mean is unchanged.
        return self.norm(x.flatten(-2))[0].view_as(x) * gain

    def attend(self, layer: Layer, q: Tensor, past: Past, place: Place) -> Tensor:
        """What each head gathers for queries (batch, head, pos, d_head): z, (batch, pos, head, d_head)."""
        mask, cap, keys = place.masks[layer.window], self.arch.attention_cap, past.keys
        if self.rules.attention:
            q, keys = q.detach(), keys.detach()
        if cap is None:
            z = F.scaled_dot_product_attention(q, keys, past.values, attn_mask=mask, scale=layer.scale)
        else:
            logits = self._capped(q @ keys.transpose(-1, -2) * layer.scale, cap) + mask
            z = at_least_float32(logits).softmax(-1).to(q.dtype) @ past.values
        return z.transpose(1, 2)

    def attention_out(self, layer: Layer, z: Tensor) -> tuple[Tensor, Tensor]:
        """What attention adds to the residual stream, (batch, pos, d_model), and ``LayerRun.written``."""
        out = F.linear(z.flatten(-2), layer.w_o, layer.b_o)
        if layer.attn_gain is None:
            return out, z
        y, rstd = self.norm(out)
        return y * layer.attn_gain, (z * rstd[..., None]).to(z.dtype)

    def mlp(self, layer: Layer, x: Tensor) -> Tensor:
        """The MLP's write for a residual stream x that it has yet to normalise."""
        hidden = F.linear(self.read_norm(x)[0], layer.w_in, layer.b_in)
        if self.arch.gated:
            gate, value = hidden.chunk(2, -1)
            hidden = self._activated(gate) * value
            hidden = (hidden + hidden.detach()) / 2 if self.rules.gate else hidden
        else:
            hidden = self._activated(hidden)
        out = F.linear(hidden, layer.w_out, layer.b_out)
        return out if layer.mlp_gain is None else self.norm(out)[0] * layer.mlp_gain

    def _activated(self, x: Tensor) -> Tensor:
        return self._bent(ACTIVATIONS[self.arch.activation], x)

    def _capped(self, x: Tensor, cap: float) -> Tensor:
        return self._bent(lambda x: cap * torch.tanh(x / cap), x)

    def _bent(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """f(x), number by number; under the rule for activations its slope is that of the line from 0."""
        if not self.rules.activation:
            return f(x)
        value = f(x.detach())
        slope = torch.where(x == 0, 0.5, value / x).detach()
        return value + (x - x.detach()) * slope

    def unembed(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits for what ``logits`` reads. Ask only for the positions that are wanted: it is costly."""
        y = self.norm(to_device_of(x, self.final_gain))[0] * self.final_gain
        y = y if self.final_shift is None else y + self.final_shift
        logits, cap = F.linear(y, self.unembedding, self.unembedding_bias), self.arch.logit_cap
        return to_device_of(logits if cap is None else self._capped(logits, cap), x)

    def place(self, start: int, length: int) -> Place:
        """Masks and rotations for positions start, start + 1, ... of a prompt that begins at 0."""
        at = torch.arange(start, start + length, device=self.device)[:, None]
        key = torch.arange(start + length, device=self.device)
        masks = {}
        for window in {layer.window for layer in self.layers}:
            hidden = (key > at) if window is None else (key > at) | (key <= at - window)
            masks[window] = torch.zeros_like(hidden, dtype=self.dtype).masked_fill(hidden, -torch.inf)
        return Place(masks, [self._rotation(rotary, at) for rotary in self.rotary])

    def _rotation(self, rotary: Rotary, at: Tensor) -> tuple[Tensor, Tensor]:
        frequency = rotary.frequencies.to(torch.promote_types(self.dtype, torch.float32))
        angle = (at * frequency).tile(2)[:, None]
        cos, sin = angle.cos() * rotary.gain, angle.sin() * rotary.gain
        return cos.to(self.dtype), sin.to(self.dtype)

    def rotate(self, layer: Layer, x: Tensor, place: Place) -> Tensor:
        """Rotary position embedding of queries or keys (batch, pos, head, d_head), if there is one."""
        if not place.rotations:
            return x
        cos, sin = place.rotations[layer.rotary]
        turning = cos.shape[-1]
        a, b = x[..., :turning].chunk(2, -1)
        turned = x[..., :turning] * cos + torch.cat([-b, a], -1) * sin
        return turned if turning == x.shape[-1] else torch.cat([turned, x[..., turning:]], -1)

    def with_positions(self, x: Tensor, start: int) -> Tensor:
        """The residual stream of token embeddings at positions start, start + 1, ..."""
        if self.positions is None:
            return x
        if start + x.shape[1] > len(self.positions):
            raise InputError(
                f"the model reads at most {len(self.positions)} tokens: a prompt has {start + x.shape[1]}. "
                "Shorten it, or use a model with a longer context."
            )
        return x + self.positions[start : start + x.shape[1]]

    def logits(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """The plain forward pass, logits at every position."""
        with torch.no_grad():
            return self.unembed(self.run(self.embed(ids)).final_in)

    def check_one_device(self, work: str) -> None:
        """Refuse what is only written for a model that is in one place."""
        if not all(same_device(layer.w_qkv, self.embedding) for layer in self.layers):
            raise UsageError(f"{work} needs the whole model on one device: leave --device-map out.")

    def spread(self, devices: Sequence[torch.device]) -> Transformer:
        """The same model, its layers one by one on the devices given; the rest is on the first of them.

        The unembedding, which is as large as several layers, is with the last layer, unless it is the
        embedding.
        """
        own = self.to(devices[0])
        tied = self.unembedding.data_ptr() == self.embedding.data_ptr()
        end = devices[0] if tied else devices[-1]
        names = ("final_gain", "final_shift", "unembedding_bias") + (() if tied else ("unembedding",))
        moved = {name: _moved(getattr(self, name), end) for name in names}
        layers = tuple(_moved_layer(x, at) for x, at in zip(self.layers, devices, strict=True))
        return replace(own, layers=layers, **moved)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Transformer:
        """The same model elsewhere, or in another precision."""

        def moved(value: Any) -> Any:
            return _moved(value, device, dtype)

        layers = tuple(_moved_layer(x, device, dtype) for x in self.layers)
        names = ("embedding", "unembedding", "unembedding_bias", "final_gain", "final_shift", "positions")
        tensors = {name: moved(getattr(self, name)) for name in names}
        # Angles grow with the position: half precision would blur them, so frequencies stay float32.
        rotary = tuple(replace(x, frequencies=x.frequencies.to(device)) for x in self.rotary)
        return replace(self, layers=layers, rotary=rotary, **tensors)


def _moved(value: Any, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Any:
    return value.to(device, dtype) if isinstance(value, Tensor) else value


def _moved_layer(layer: Layer, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Layer:
    return replace(layer, **{name: _moved(value, device, dtype) for name, value in vars(layer).items()})
