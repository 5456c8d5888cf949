"""Compile RASP programs into weights with tracr: the models of ``gradpath reproduce truth``.

Only this script needs tracr and jax; neither gradpath nor its tests do::

    python -m venv tracr-env && tracr-env/bin/pip install tracr-pypi safetensors
    tracr-env/bin/python benchmarks/truth/compile.py
    python benchmarks/truth/derive.py                        # then: the true edges, with gradpath

It writes, for every program, its weights as tracr has them (residual stream of one dimension per value, no norm)
and pairs of prompts with their answers. ``gradpath.paper.compiled`` lays these weights out as a GPT-2.

Every program is compiled causally and read at the last position. What tracr's own model computes there is compared
with the program itself on every prompt.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tracr.compiler import compiling, lib
from tracr.rasp import causal_eval, rasp

OUT = Path(__file__).parents[2] / "src" / "gradpath" / "paper" / "data" / "truth"
PAIRS = 40  # of which the first are attributed, and the others measured on
Value = Any


@dataclass(frozen=True)
class Program:
    """A RASP program, its vocabulary and the length of its prompts."""

    about: str
    build: Callable[[], rasp.SOp]
    vocabulary: str = "abc"
    length: int = 4
    good: Callable[[list[str]], bool] = lambda prompt: True  # which prompts it is defined on
    right: Value = None  # the answer of all clean prompts, if it has to be one


def same(keys: rasp.SOp, queries: rasp.SOp) -> rasp.Selector:
    return rasp.Select(keys, queries, lambda k, q: k == q)  # a key may be None, which Comparison.EQ refuses


def first() -> rasp.SOp:
    """The first token, found by its position."""
    return rasp.Aggregate(rasp.Select(rasp.indices, rasp.indices, lambda k, q: k == 0), rasp.tokens)


def is_one_of(tokens: str, sop: rasp.SOp) -> rasp.SOp:
    return rasp.categorical(rasp.Map(lambda x: x in tokens, sop))


def before(offset: int) -> rasp.SOp:
    """The token ``offset`` positions before."""
    return rasp.categorical(lib.shift_by(offset, rasp.tokens))


def either(a: rasp.SOp, b: rasp.SOp) -> rasp.SOp:
    return rasp.categorical(rasp.SequenceMap(lambda x, y: x or y, a, b))


def induction() -> rasp.SOp:
    previous = before(1)
    return rasp.Aggregate(same(previous, rasp.tokens), rasp.tokens)


def pointer() -> rasp.SOp:
    """Tokens are positions: what stands where the last token points to, and where that points to."""
    places = rasp.categorical(rasp.Map(int, rasp.tokens))
    hop = rasp.categorical(rasp.Aggregate(same(rasp.indices, places), places))
    return rasp.Aggregate(same(rasp.indices, hop), places)


def pointed(prompt: list[str]) -> bool:
    return all(int(token) <= place for place, token in enumerate(prompt))


def first_is_last() -> rasp.SOp:
    return rasp.categorical(rasp.SequenceMap(lambda x, y: x == y, rasp.categorical(first()), rasp.tokens))


def parity_of_two() -> rasp.SOp:
    a, b = is_one_of("ab", rasp.categorical(first())), is_one_of("ac", before(1))
    return rasp.categorical(rasp.SequenceMap(lambda x, y: x != y, a, b))


def two_copies() -> rasp.SOp:
    """Two heads with the same job: the answer needs one of them."""
    a, b = (is_one_of("a", rasp.categorical(first()).named(f"first {i}")).named(f"is a {i}") for i in (1, 2))
    return either(a, b)


def previous_two_copies() -> rasp.SOp:
    a, b = (is_one_of("ab", rasp.categorical(lib.shift_by(1, rasp.tokens)).named(f"before {i}")) for i in (1, 2))
    return either(a.named("is ab 1"), b.named("is ab 2"))


def any_of_three() -> rasp.SOp:
    """An OR of three different tokens."""
    parts = [is_one_of("a", before(i)) for i in (1, 2, 3)]
    return either(either(parts[0], parts[1]), parts[2])


def chain() -> rasp.SOp:
    """Three maps after one another: MLPs alone."""
    after = {"a": "b", "b": "c", "c": "d", "d": "a"}
    x = rasp.tokens
    for _ in range(3):
        x = rasp.categorical(rasp.Map(lambda token: after[token], x, simplify=False))
    return x


def distinct_before_last(prompt: list[str]) -> bool:
    """No token occurs twice, but for the last, which occurs once before and not just before itself."""
    return len(set(prompt)) == len(prompt) - 1 == len(set(prompt[:-1])) and prompt[-2] != prompt[-1]


PROGRAMS = {
    "xproportion": Program(
        "The share of x among all tokens.", lambda: lib.make_frac_prevs(rasp.tokens == "x"), "wxyz", 5
    ),
    "reverse": Program(
        "The prompt reversed: its first token, at the last position.", lambda: lib.make_reverse(rasp.tokens), "abc", 5
    ),
    "previous": Program("The token before the last.", lambda: before(1)),
    "induction": Program("What followed the last token before.", induction, "abcd", 5, distinct_before_last),
    "pattern": Program("Whether the prompt ends with ab.", lambda: lib.detect_pattern(rasp.tokens, "ab"), "abc", 4),
    "histogram": Program("How often the last token occurs.", lib.make_hist, "abc", 5),
    "count": Program("How often a occurs.", lambda: lib.make_count(rasp.tokens, "a"), "abc", 5),
    "balance": Program(
        "The share of opening minus that of closing brackets.",
        lambda: lib.make_pair_balance(rasp.tokens, "(", ")"),
        "()x",
        5,
    ),
    "pointer": Program("Two hops along tokens that are positions.", pointer, "0123", 4, pointed),
    "first-is-last": Program("Whether the first token equals the last.", first_is_last),
    "parity": Program("The exclusive or of a property of the first and of the token before the last.", parity_of_two),
    "chain": Program("A permutation of tokens, three times: MLPs alone.", chain, "abcd", 3),
    "two-copies": Program("Whether the first token is a, by two heads of which one is enough.", two_copies, right=True),
    "two-previous": Program(
        "Whether the second to last token is a or b, by two heads.", previous_two_copies, right=True
    ),
    "any-of-three": Program("Whether one of the three tokens before the last is a.", any_of_three, "abc", 4),
}


def prompts(program: Program, rng: random.Random) -> Iterator[list[str]]:
    """Random prompts that the program is defined on."""
    while True:
        prompt = [rng.choice(program.vocabulary) for _ in range(program.length)]
        if program.good(prompt):
            yield prompt


def answers_of(program: Program, sop: rasp.SOp, model: Any) -> Callable[[list[str]], Value]:
    """A function from a prompt to its answer, computed by the program and compared with the compiled model."""
    known: dict[tuple[str, ...], Value] = {}

    def answer(prompt: list[str]) -> Value:
        if tuple(prompt) not in known:
            value = causal_eval.evaluate(sop, prompt)[-1]
            computed = model.apply(["compiler_bos", *prompt]).decoded[-1]
            equal = abs(value - computed) < 1e-3 if isinstance(value, float) else value == computed
            assert value is None or equal, (prompt, value, computed)
            known[tuple(prompt)] = round(value, 6) if isinstance(value, float) else value
        return known[tuple(prompt)]

    return answer


def pairs_of(program: Program, answer: Callable[[list[str]], Value], seed: int) -> list[dict[str, Any]]:
    """Pairs of prompts with different answers; a corrupted prompt is another random one."""
    rng = random.Random(seed)
    stream, pairs = prompts(program, rng), []
    while len(pairs) < PAIRS:
        clean, corrupted = next(stream), next(stream)
        right, wrong = answer(clean), answer(corrupted)
        if right is not None and wrong is not None and right != wrong and program.right in (None, right):
            pairs.append({"clean": clean, "corrupted": corrupted, "right": right, "wrong": wrong})
    return pairs


def heads_of(params: dict[str, Any], layer: int, n_heads: int) -> list[dict[str, np.ndarray]]:
    """The heads of a layer that do something, each with as few dimensions as it uses."""
    name, heads = f"transformer/layer_{layer}/attn", []
    query, key, value = (np.asarray(params[f"{name}/{x}"]["w"]) for x in ("query", "key", "value"))
    out = np.asarray(params[f"{name}/linear"]["w"])
    size = query.shape[1] // n_heads
    for head in range(n_heads):
        own = slice(head * size, (head + 1) * size)
        q, k, v, o = query[:, own] / np.sqrt(size), key[:, own], value[:, own], out[own]
        used = (q.any(0) & k.any(0)), (v.any(0) & o.any(1))
        if used[1].any():
            heads.append({"q": q[:, used[0]], "k": k[:, used[0]], "v": v[:, used[1]], "o": o[used[1]]})
    return heads


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """All weights of a compiled model, without what is zero."""
    params, config = model.params, model.model_config
    assert not any(np.asarray(part["b"]).any() for name, part in params.items() if "b" in part), "tracr has no biases"
    weights = {"embed": params["token_embed"]["embeddings"], "positions": params["pos_embed"]["embeddings"]}
    for layer in range(config.num_layers):
        for i, head in enumerate(heads_of(params, layer, config.num_heads)):
            weights |= {f"layer{layer}.head{i}.{name}": part for name, part in head.items()}
        first, second = (np.asarray(params[f"transformer/layer_{layer}/mlp/linear_{i}"]["w"]) for i in (1, 2))
        used = first.any(0) & second.any(1)
        if used.any():
            weights |= {f"layer{layer}.mlp.in": first[:, used], f"layer{layer}.mlp.out": second[used]}
    return weights


def compiled(name: str, program: Program) -> None:
    sop = program.build()
    model = compiling.compile_rasp_to_model(sop, set(program.vocabulary), max_seq_len=program.length, causal=True)
    pairs = pairs_of(program, answers_of(program, sop, model), seed=0)
    weights = weights_of(model)
    tokens = model.input_encoder.encoding_map
    order = [token for token in sorted(tokens, key=tokens.get) if token != "compiler_pad"]
    weights["embed"] = np.asarray(weights["embed"])[[tokens[token] for token in order]]
    numerical = rasp.is_numerical(sop)
    output = [label for label in model.residual_labels if label.split(":")[0] == sop.label]
    values = [] if numerical else sorted(model.output_encoder.encoding_map, key=model.output_encoder.encoding_map.get)
    assert len(output) == (1 if numerical else len(values)), (output, values)
    unembed = np.zeros((len(model.residual_labels), len(output)), np.float32)
    for column, label in enumerate(output):
        unembed[model.residual_labels.index(label), column] = 1
    weights["unembed"] = unembed
    facts = {
        "about": program.about,
        "layers": model.model_config.num_layers,
        "tokens": ["BOS" if token == "compiler_bos" else token for token in order],
        "answers": None if numerical else [str(value) for value in values],
        "pairs": [[" ".join(pair["clean"]), " ".join(pair["corrupted"]), *labels(pair, numerical)] for pair in pairs],
    }
    OUT.mkdir(parents=True, exist_ok=True)
    stored = {name: np.ascontiguousarray(x, np.float32) for name, x in weights.items()}
    save_file(stored, OUT / f"{name}.safetensors", metadata={"program": json.dumps(facts)})
    size = (OUT / f"{name}.safetensors").stat().st_size
    print(
        f"{name:<14} {facts['layers']} layers, stream of {len(model.residual_labels)}, {size / 1024:.0f} KB, "
        f"answers {sorted({str(pair['right']) for pair in pairs})}"
    )


def labels(pair: dict[str, Any], numerical: bool) -> list[str]:
    """The right and the wrong answer as words; of a number whether it is more or less."""
    if numerical:
        return ["more", "less"] if pair["right"] > pair["wrong"] else ["less", "more"]
    return [str(pair["right"]), str(pair["wrong"])]


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        compiled(name, PROGRAMS[name])
