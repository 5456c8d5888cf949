"""auto-circuit on the weights of a transformers model: its EAP and its evaluation, in gradpath's terms.

auto-circuit 1.0.1 was written for an older TransformerLens, so one class is given its old name before it is
imported. It changes the model that it is given, which is why it gets one of its own.
"""

from __future__ import annotations

import sys
import types

import torch
import transformer_lens
from torch import Tensor
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import GPT2LMHeadModel

from gradpath.graph import Graph
from gradpath.tasks.task import Task

Cache = transformer_lens.TransformerLensKeyValueCache
transformer_lens.HookedTransformerKeyValueCache = Cache
sys.modules["transformer_lens.past_key_value_caching"] = types.ModuleType("past_key_value_caching")
sys.modules["transformer_lens.past_key_value_caching"].HookedTransformerKeyValueCache = Cache

from auto_circuit.data import PromptDataLoader, PromptDataset  # noqa: E402
from auto_circuit.prune import run_circuits  # noqa: E402
from auto_circuit.prune_algos.mask_gradient import mask_gradient_prune_scores  # noqa: E402
from auto_circuit.types import PatchType, PruneScores  # noqa: E402
from auto_circuit.utils.graph_utils import patchable_model  # noqa: E402
from auto_circuit.utils.patchable_model import PatchableModel  # noqa: E402

# Where auto-circuit keeps the masks of what a layer's nodes read, in the order of gradpath's targets.
QKV = ("hook_q_input", "hook_k_input", "hook_v_input")


def hooked(original: GPT2LMHeadModel) -> transformer_lens.HookedTransformer:
    """The same GPT-2 in TransformerLens, weights as they are: no folding, no centring."""
    c = original.config
    config = transformer_lens.HookedTransformerConfig(
        n_layers=c.n_layer,
        n_heads=c.n_head,
        d_model=c.n_embd,
        d_head=c.n_embd // c.n_head,
        d_mlp=4 * c.n_embd,
        n_ctx=c.n_positions,
        d_vocab=c.vocab_size,
        act_fn=c.activation_function,
        eps=c.layer_norm_epsilon,
        normalization_type="LN",
        # What edge patching needs: every head's output, and every head's own q, k and v input.
        use_attn_result=True,
        use_split_qkv_input=True,
        use_hook_mlp_in=True,
        device="cpu",
    )
    model = transformer_lens.HookedTransformer(config)
    missing, unexpected = model.load_state_dict(convert_gpt2_weights(original, config), strict=False)
    # The converter leaves out causal masks, which are no weights, and the unembedding's bias: GPT-2 has none.
    missing = [name for name in missing if not name.endswith(("attn.mask", "attn.IGNORE", "unembed.b_U"))]
    assert missing == unexpected == [], (missing, unexpected)
    return model.eval().requires_grad_(False)


def patchable(original: GPT2LMHeadModel) -> PatchableModel:
    return patchable_model(
        hooked(original), factorized=True, slice_output="last_seq", separate_qkv=True, device=torch.device("cpu")
    )


def loader(task: Task, batch_size: int) -> PromptDataLoader:
    """The task's pairs; labels are (answer, wrong answer)."""
    data = PromptDataset(task.clean, task.corrupted, list(task.labels[:, :1]), list(task.labels[:, 1:]))
    return PromptDataLoader(data, seq_len=None, diverge_idx=0, batch_size=batch_size, shuffle=False)


def eap(model: PatchableModel, prompts: PromptDataLoader) -> PruneScores:
    """The gradient of minus the mean logit difference at masks of 0, which is EAP at the clean prompt."""
    return mask_gradient_prune_scores(
        model, prompts, None, grad_function="logit", answer_function="avg_diff", mask_val=0.0
    )


def as_matrix(graph: Graph, found: PruneScores, n_batches: int) -> Tensor:
    """EAP scores as gradpath has them, (source, target).

    A mask of 1 puts x' in place of x, so its gradient is (x' - x) . d(-L)/d in = (x - x') . dL/d in, the sign
    of gradpath. Each batch adds the mean over its examples, and all batches are of one size.
    """
    values = torch.zeros(graph.n_sources, graph.n_targets)
    for first, n_targets, name in _places(graph):
        scores = found[name].view(n_targets, -1)  # (target, source)
        values[: scores.shape[1], first : first + n_targets] = scores.T
    return values / n_batches


def as_prune_scores(graph: Graph, values: Tensor, like: PruneScores) -> PruneScores:
    """gradpath's scores in auto-circuit's shape."""
    found = {}
    for first, n_targets, name in _places(graph):
        n_sources = like[name].shape[-1]
        found[name] = values[:n_sources, first : first + n_targets].T.reshape(like[name].shape).contiguous()
    return found


def _places(graph: Graph) -> list[tuple[int, int, str]]:
    """(first target, how many, name of the mask)."""
    places = [(graph.logits, 1, f"blocks.{graph.n_layers - 1}.hook_resid_post")]
    for layer in range(graph.n_layers):
        for i, hook in enumerate(QKV):
            places.append((graph.target_head(layer) + i * graph.n_heads, graph.n_heads, f"blocks.{layer}.{hook}"))
        places.append((graph.target_mlp(layer), 1, f"blocks.{layer}.hook_mlp_in"))
    return places


def circuits(
    model: PatchableModel, prompts: PromptDataLoader, scores: PruneScores, counts: list[int]
) -> dict[int, Tensor]:
    """Logits at the last position of the circuits of the n largest |scores|, {n: (example, vocab)}."""
    found = run_circuits(model, prompts, counts, scores, patch_type=PatchType.TREE_PATCH)
    keys = [batch.key for batch in prompts]
    return {n: torch.cat([batches[key] for key in keys]) for n, batches in found.items()}
