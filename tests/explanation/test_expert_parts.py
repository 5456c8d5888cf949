"""The experts that an MLP node's effect comes from, against the block with one expert switched off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from covering import some
from small_models import prompts, tiny_model
from test_explanation import whole
from torch import Tensor

import gradpath as gp
from gradpath.ablation import Ablation, ablation_of
from gradpath.cli.circuits import _roles_text
from gradpath.explanation.experts import Expert
from gradpath.explanation.measure import measure
from gradpath.explanation.roles import Role, Writes, sentence
from gradpath.limits import Limits
from gradpath.model.architecture import Layer
from gradpath.model.transformer import Run, Transformer

KINDS = (
    *("deepseek-v2", "deepseek-v3", "glm4-moe", "glm4-moe-lite", "gpt-oss", "llama4", "llama4-with-images"),
    *("mixtral", "olmoe", "qwen2-moe", "qwen3-moe"),
)
PAIRS = prompts([5, 7, 7], [[2], [3, 4], [6]])
N_CHANGED = 3 + 4 + 1  # tokens from the first change of each pair on


def runs(model: Transformer) -> list[list[Run]]:
    """The clean and the corrupted run of each pair, whole."""
    encode = model.tokenizer.encode
    pairs = zip(encode(PAIRS.clean), encode(PAIRS.corrupted), strict=True)
    return [[model.run(model.embed(torch.tensor([ids]))) for ids in pair] for pair in pairs]


def gradient(model: Transformer, index: int, run: Run, example: int) -> Tensor:
    """The gradient of the metric at what a layer leaves behind, by running the layers above it alone."""
    streams = [layer.attn_in for layer in run.layers] + [run.final_in]
    x = streams[index + 1].detach().requires_grad_()
    final = model.above(index + 1).final_in(x) if index + 1 < len(model.layers) else x
    metric = PAIRS.metric(model.unembed(final[:, -1]), PAIRS.labels[example : example + 1])
    return torch.autograd.grad(metric.sum(), x)[0]


def without(layer: Layer, expert: int | None) -> Layer:
    """The layer, one of whose experts, or the shared one, writes nothing. No weight of another expert changes."""
    if expert is None:
        return replace(layer, w_out=torch.zeros_like(layer.w_out), b_out=None)

    def zeroed(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.index_fill(0, torch.tensor([expert]), 0)

    experts = layer.experts
    return replace(layer, experts=replace(experts, w_out=zeroed(experts.w_out), b_out=zeroed(experts.b_out)))


@pytest.mark.parametrize("kind", some(KINDS, ["llama4", "qwen2-moe"]))
def test_parts_and_choices_are_those_of_the_block_without_the_expert(kind):
    model = tiny_model(kind)
    explanation = gp.explain(model, whole(model.graph), PAIRS, batch_size=2)
    every = runs(model)
    mixtures = [index for index, layer in enumerate(model.layers) if layer.experts is not None]
    assert mixtures
    for index in mixtures:
        layer, node = model.layers[index], f"m{index}"
        shared = [None] if layer.w_out.shape[1] else []
        told = {expert.name: expert for expert in explanation[node].experts}
        for number in [*range(len(layer.experts.router)), *shared]:
            silent, effect, counts = without(layer, number), 0.0, [0, 0]
            for example, pair in enumerate(every):
                grad_out = sum(gradient(model, index, run, example) for run in pair) / 2
                parts = [model.mlp(layer, x) - model.mlp(silent, x) for x in (run.layers[index].mlp_in for run in pair)]
                effect += float(((parts[0] - parts[1]) * grad_out).sum()) / len(every)
                first = (2, 3, 6)[example]
                counts = [n + int(part[0, first:].any(-1).sum()) for n, part in zip(counts, parts, strict=True)]
            name = f"{node}.shared" if number is None else f"{node}.e{number}"
            if not any(counts):
                assert name not in told
                continue
            expert = told.pop(name)
            assert expert.effect == pytest.approx(effect, abs=1e-4)
            assert [expert.clean, expert.corrupted] == pytest.approx([n / N_CHANGED for n in counts])
        assert told == {}
    for role in explanation:
        if role.node not in {f"m{index}" for index in mixtures}:
            assert role.experts == ()


def add_up(model: Transformer, ablation: Ablation | None = None) -> None:
    """Assert that the parts of every node with experts add up to its effect."""
    measured = measure(model, whole(model.graph), PAIRS, limits=Limits(batch_size=2), ablation=ablation)
    effects = measured.effect.sum(-1).sum(0)  # (source,), over the examples
    rows = [measured.sources.index(source) for source in measured.mixtures]
    assert rows
    assert torch.allclose(measured.experts[0].sum(-1), effects[rows], rtol=1e-4, atol=1e-4)
    assert float(effects[rows].abs().max()) > 0.01


@pytest.mark.parametrize("kind", some(KINDS, ["deepseek-v3"]))
def test_parts_add_up_to_the_effect_of_the_node(kind):
    add_up(tiny_model(kind))


def test_what_an_ablation_writes_instead_is_a_part_of_its_own():
    model = tiny_model("glm4-moe")
    for ablation in ("zero", "mean"):
        add_up(model, ablation_of(ablation, model, PAIRS))
    experts = gp.explain(model, whole(model.graph), PAIRS, ablation="mean")["m1"].experts
    assert [expert.name for expert in experts if expert.clean is None] == ["ablation"]


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_a_norm_after_the_mlp_divides_the_parts_too(norm):
    model = tiny_model("mixtral")
    gain = torch.linspace(0.5, 2, model.arch.d_model)
    layers = tuple(replace(layer, mlp_gain=gain) for layer in model.layers)
    add_up(replace(model, layers=layers, arch=replace(model.arch, norm=norm)))


def test_a_model_without_experts_has_no_numbers_of_them():
    model = tiny_model("gpt2")
    measured = measure(model, whole(model.graph), PAIRS)
    assert (measured.mixtures, measured.experts.numel()) == ([], 0)


def test_experts_are_told_in_json_tables_and_text():
    pytest.importorskip("pandas")
    model = tiny_model("qwen2-moe")
    explanation = gp.explain(model, whole(model.graph), PAIRS)
    role = next(role for role in explanation if role.experts)
    best = role.experts[0]
    sizes = [abs(expert.effect) for expert in role.experts]
    assert sizes == sorted(sizes, reverse=True)
    assert [expert.share for expert in role.experts] == pytest.approx([size / sum(sizes) for size in sizes])
    assert f"{role.node}.shared" in {expert.name for expert in role.experts}
    assert role.to_json()["experts"][0] == vars(best)
    table = explanation.to_pandas()
    assert table.set_index("node")["experts"][role.node].startswith(f"{best.name} {best.effect:+.2f}, ")
    section = _roles_text(explanation, "circuit.json", 25).partition("Experts, by their part")[2]
    chosen = f"({best.clean:.0%} / {best.corrupted:.0%})"
    assert f"  {role.node:9s} {best.name.split('.')[1]} {best.effect:+.2f} {chosen}, " in section


def test_an_expert_with_most_of_the_effect_is_named_in_the_sentence():
    expert = Expert("m1.e3", effect=0.6, share=0.75, clean=0.5, corrupted=0.25)
    role = Role("m1", direct_effect=0.7, writes=Writes(0.5, -0.2, (), ()), experts=[expert])
    told = "raises the name's logit (+0.50) and owes 75% of its effect to m1.e3"
    assert sentence(role, ("name", "other"), direct_is_clear=True) == told
    weak = replace(role, experts=[replace(expert, share=0.4)])
    assert sentence(weak, ("name", "other"), direct_is_clear=True) == "raises the name's logit (+0.50)"
