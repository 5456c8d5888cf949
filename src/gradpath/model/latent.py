r"""Multi-head latent attention: queries, keys and values that are made from short vectors, which all heads share.

For the normalised input y of one position and head h, with a norm of the latents themselves,

    c     = W_c y                                    the latent of keys and values
    k_h   = [rotated W_r y;  U_h norm(c)]            the rotated part is shared by all heads, too
    v_h   = V_h norm(c)
    q_h   = Q_h norm(W_q y),  or  W_qh y             with a latent of its own, or without

The targets ``<q>``, ``<k>`` and ``<v>`` of a head read the residual stream as in every other model. So each has a copy
of its latent, computed from what it reads, and of the rotated part of the key: ``Layer.w_qkv`` projects to these,
padded to one width, and what this module does comes after, head by head, like a norm of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# The norm of latents x (..., rank), given the constant in it.
Norm = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Latent:
    """The maps from latents to queries, keys and values, with the gains of their norms. A fingerprint has these names.

    The rotated dimensions of queries and keys come first.
    """

    k_up: Tensor  # (head, d_key - n_rotated, rank)
    v_up: Tensor  # (head, d_head, rank)
    q_up: Tensor | None  # (head, d_key, rank of queries); None: queries have no latent
    n_rotated: int
    eps: float  # in the norms of latents

    def of_heads(self, heads: Sequence[int]) -> Latent:
        """The maps of some heads."""
        q_up = None if self.q_up is None else self.q_up[heads]
        return replace(self, k_up=self.k_up[heads], v_up=self.v_up[heads], q_up=q_up)

    def queries(self, x: Tensor, norm: Norm) -> Tensor:
        """Queries (batch, pos, head, d_key) of what heads have projected, (batch, pos, head, d_qkv)."""
        if self.q_up is None:
            return x[..., : self.n_rotated + self.k_up.shape[1]]
        return self._up(self.q_up, x, norm)

    def keys(self, x: Tensor, norm: Norm) -> Tensor:
        """Keys, the same."""
        rank = self.k_up.shape[2]
        return torch.cat([x[..., rank : rank + self.n_rotated], self._up(self.k_up, x, norm)], -1)

    def values(self, x: Tensor, norm: Norm) -> Tensor:
        """Values, (batch, pos, head, d_head)."""
        return self._up(self.v_up, x, norm)

    def _up(self, weights: Tensor, x: Tensor, norm: Norm) -> Tensor:
        return torch.einsum("bphr,hdr->bphd", norm(x[..., : weights.shape[2]], self.eps), weights)
