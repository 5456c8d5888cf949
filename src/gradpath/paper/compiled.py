r"""Compiled models: GPT-2 checkpoints whose circuit is known, because a program was compiled into their weights.

tracr (Lindner et al. 2023, arXiv 2301.05062) compiles a RASP program into a transformer without norms, with a residual
stream x of one dimension per value. ``data/truth`` has its weights for fifteen programs, and pairs of prompts;
``benchmarks/truth`` has the scripts that made them. This file lays such weights out as an ordinary GPT-2, exactly:

    stream = [x, -x, C, -C, 0 ...]        C = 8192, in the positional embeddings, so no ablation changes it

The mean of the stream is 0 and its norm is the constant's, up to a share |x|^2 / 2 C^2 < 1e-6, so LayerNorm divides by
a constant, which its gain undoes. The activation is ReLU, as in tracr; neurons that tracr leaves at exactly 0, where
ReLU has no derivative, are moved below it. A weight w that reads x reads the stream as [w / 2, -w / 2].

Programs come at three levels:

``plain``    as compiled
``hidden``   in a wider and deeper model: random heads and MLPs that are active, read everything, and write to
             extra dimensions, which only they and the logits of tokens that are not answers read; the program's
             layers and heads are at random places; and the stream is rotated at random (a rotation that leaves the
             mean and the coordinates of C alone commutes with LayerNorm)
``curved``   as ``hidden``, and some of those heads copy a property s, 0 or 1, of one token into an MLP that adds
             |s - 1/2| - 1/2 to an answer: nothing for both values, but the slope is not 0, so gradients mislead
"""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradpath.circuit import Circuit
from gradpath.errors import unknown
from gradpath.graph import Graph
from gradpath.model.load import load_model
from gradpath.model.transformer import Transformer
from gradpath.recipe import Recipe
from gradpath.runtime.files import write_atomically
from gradpath.tasks.metrics import logit_difference
from gradpath.tasks.task import Task

LEVELS = ("plain", "hidden", "curved")
CONSTANT = 8192.0
ATTRIBUTED = 24  # of the pairs; the others are held out
HEADS, LAYERS = 4, 3  # the smallest model of a hidden program
SPARE, NEURONS = 6, 8  # dimensions of the residual stream, and neurons in each MLP, that the program does not use
BUMPS, HEIGHT = 2, 3.0  # of the level ``curved``
KINK = 0.1
SURE = 60.0  # an attention logit that leaves e^-60 to all other positions
FILLER = ("the", "[UNK]")  # words of the tokenizer that are neither tokens of a program nor answers
_FOLDER = resources.files("gradpath.paper") / "data" / "truth"


@dataclass(frozen=True)
class Program:
    """The weights of one compiled program in tracr's residual stream, and its data."""

    name: str
    weights: Mapping[str, Tensor]
    about: str
    n_layers: int
    tokens: tuple[str, ...]
    answers: tuple[str, ...] | None  # None if the answer is a number
    pairs: tuple[tuple[str, str, str, str], ...]  # clean, corrupted, correct answer, wrong answer

    @property
    def width(self) -> int:
        return int(self.weights["embed"].shape[1])

    @property
    def length(self) -> int:
        """The number of positions."""
        return len(self.weights["positions"])

    @cached_property
    def heads(self) -> list[int]:
        """The number of heads in each layer."""
        names = {tuple(name.split(".")[:2]) for name in self.weights if ".head" in name}
        return [sum(layer == f"layer{i}" for layer, _ in names) for i in range(self.n_layers)]

    @property
    def answer_words(self) -> tuple[str, ...]:
        """The answers; a number raises the logit of ``more`` and lowers that of ``less``."""
        return self.answers or ("more", "less")

    @property
    def vocabulary(self) -> list[str]:
        """All words: those of prompts, then the other answers, then those that no prompt has."""
        return list(dict.fromkeys([*self.tokens, *self.answer_words, *FILLER]))

    def unembedding(self) -> Tensor:
        """The weights by which every word's logit reads x, (word, width)."""
        read, words = self.weights["unembed"].T, self.vocabulary
        rows = torch.zeros(len(words), self.width)
        answers = [words.index(word) for word in self.answer_words]
        rows[answers] = torch.cat([read[:1], -read[:1]]) if self.answers is None else read
        return rows


@cache
def _true_edges() -> Any:
    """The true edges of every program, and the kind of each."""
    return json.loads((_FOLDER / "truth.json").read_text(encoding="utf-8"))


def program_names() -> list[str]:
    return sorted(file.name.removesuffix(".safetensors") for file in _FOLDER.iterdir() if "safetensors" in file.name)


def load_program(name: str) -> Program:
    from safetensors import safe_open

    if name not in program_names():
        raise unknown("compiled program", name, program_names())
    with resources.as_file(_FOLDER / f"{name}.safetensors") as file, safe_open(str(file), "pt") as stored:
        weights = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118  (it is not a mapping)
        facts = json.loads(stored.metadata()["program"])
    answers = None if facts["answers"] is None else tuple(facts["answers"])
    pairs = tuple((a, b, right, wrong) for a, b, right, wrong in facts["pairs"])
    return Program(name, weights, facts["about"], facts["layers"], tuple(facts["tokens"]), answers, pairs)


@dataclass(frozen=True)
class Layout:
    """Where a program is in its model: the model's layer for each of its layers, and the head for each of its heads."""

    graph: Graph
    layers: list[int]
    heads: list[list[int]]

    def node(self, name: str) -> str:
        """The name that a node or target of the plain model has in this one."""
        if name in ("input", "logits"):
            return name
        place, _, head = name[1:].partition(".h")
        layer = self.layers[int(place)]
        if not head:
            return f"m{layer}"
        number, bracket, kind = head.partition("<")
        return f"a{layer}.h{self.heads[int(place)][int(number)]}{bracket}{kind}"

    def edge(self, name: str) -> str:
        """The name that an edge of the plain model has in this one."""
        return "->".join(map(self.node, name.split("->")))


def layout_of(program: Program, level: str) -> Layout:
    """The places of a program's layers and heads: as compiled, or random ones in a larger model."""
    if level == "plain":
        graph = Graph(program.n_layers, max(1, *program.heads))
        return Layout(graph, list(range(program.n_layers)), [list(range(n)) for n in program.heads])
    rng, graph = _rng(program, "layout"), Graph(max(program.n_layers, LAYERS), max(*program.heads, HEADS))
    layers = sorted(torch.randperm(graph.n_layers, generator=rng)[: program.n_layers].tolist())
    heads = [torch.randperm(graph.n_heads, generator=rng)[:n].tolist() for n in program.heads]
    return Layout(graph, layers, heads)


def _rng(program: Program, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{program.name} {purpose}".encode()))


class Weights:
    """Weights in a stream x without norms, (in, out) each: to be filled in, then laid out as those of a GPT-2."""

    def __init__(self, graph: Graph, width: int, d_head: int, d_mlp: int) -> None:
        self.graph, self.width = graph, width
        shape = (graph.n_layers, graph.n_heads)
        self.q, self.k, self.v = (torch.zeros(*shape, width, d_head) for _ in range(3))
        self.q_bias = torch.zeros(*shape, d_head)
        self.o = torch.zeros(*shape, d_head, width)
        self.mlp_in, self.mlp_in_bias = torch.zeros(shape[0], width, d_mlp), torch.zeros(shape[0], d_mlp)
        self.mlp_out, self.mlp_out_bias = torch.zeros(shape[0], d_mlp, width), torch.zeros(shape[0], width)
        self.neurons = [0] * graph.n_layers  # in use

    def add_neurons(self, layer: int, read: Tensor, write: Tensor, bias: Tensor | float = 0.0) -> None:
        """Neurons that read (width, neuron) and write (neuron, width)."""
        new = slice(self.neurons[layer], self.neurons[layer] + read.shape[1])
        self.mlp_in[layer, : len(read), new], self.mlp_in_bias[layer, new] = read, torch.as_tensor(bias)
        self.mlp_out[layer, new, : write.shape[1]] = write
        self.neurons[layer] = new.stop

    def state(self, embed: Tensor, positions: Tensor, unembed: Tensor, rotation: Tensor) -> dict[str, Tensor]:
        """The weights of a GPT-2 with that residual stream, by name."""
        d = len(rotation)
        gain, nothing = torch.full((d,), CONSTANT * math.sqrt(2 / d)), torch.zeros(d)

        def write(x: Tensor) -> Tensor:  # (..., width) -> (..., d)
            return torch.cat([x, -x, x.new_zeros(*x.shape[:-1], d - 2 * self.width)], -1).double() @ rotation.T

        def read(w: Tensor) -> Tensor:  # (width, out) -> (d, out)
            return write(w.T / 2).T

        def joined(x: Tensor) -> Tensor:  # (head, width, d_head) -> (width, head d_head)
            return x.permute(1, 0, 2).flatten(1)

        place = write(positions)
        place[:, 2 * self.width], place[:, 2 * self.width + 1] = CONSTANT, -CONSTANT
        state = {"wte.weight": write(embed), "wpe.weight": place, "ln_f.weight": gain, "ln_f.bias": nothing}
        for i in range(self.graph.n_layers):
            biases = torch.cat([self.q_bias[i].flatten(), torch.zeros(2 * self.q_bias[i].numel())])
            layer = {
                "ln_1.weight": gain,
                "ln_1.bias": nothing,
                "ln_2.weight": gain,
                "ln_2.bias": nothing,
                "attn.c_attn.weight": read(torch.cat([joined(x[i]) for x in (self.q, self.k, self.v)], 1)),
                "attn.c_attn.bias": biases,
                "attn.c_proj.weight": write(self.o[i].flatten(0, 1)),
                "attn.c_proj.bias": nothing,
                "mlp.c_fc.weight": read(self.mlp_in[i]),
                "mlp.c_fc.bias": self.mlp_in_bias[i],
                "mlp.c_proj.weight": write(self.mlp_out[i]),
                "mlp.c_proj.bias": write(self.mlp_out_bias[i]),
            }
            state |= {f"h.{i}.{name}": x for name, x in layer.items()}
        state = {f"transformer.{name}": x for name, x in state.items()} | {"lm_head.weight": read(unembed.T).T}
        return {name: x.float().clone(memory_format=torch.contiguous_format) for name, x in state.items()}


def rotation_of(d: int, fixed: tuple[int, int], rng: torch.Generator) -> Tensor:
    """A random rotation that leaves two coordinates and the mean of the others alone."""
    n, wide = d - len(fixed), torch.float64
    ones, noise = torch.ones(n, 1, dtype=wide), torch.randn(n, n - 1, dtype=wide, generator=rng)
    basis = torch.linalg.qr(torch.cat([ones, noise], 1))[0]  # its first column is the direction of the mean
    turned = torch.eye(n, dtype=wide)
    turned[1:, 1:] = torch.linalg.qr(torch.randn(n - 1, n - 1, dtype=wide, generator=rng))[0]
    others = torch.tensor([i for i in range(d) if i not in fixed])
    rotation = torch.eye(d, dtype=wide)
    rotation[others[:, None], others] = basis @ turned @ basis.T
    return rotation


def build(program: Program, level: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights of the GPT-2 that a program is compiled into, at a level."""
    layout = layout_of(program, level)
    graph, r = layout.graph, program.width
    spare = SPARE if level != "plain" else 0
    bumps = BUMPS if level == "curved" else 0
    width = r + spare + (bumps + 1 if bumps else 0)

    def most(ends: tuple[str, ...]) -> int:
        return max([1, *(x.shape[1] for name, x in program.weights.items() if name.endswith(ends))])

    d_head = max(math.ceil((2 * width + 2) / graph.n_heads), most((".q", ".v")))
    weights = Weights(graph, width, d_head, most(("mlp.in",)) + (NEURONS if spare else 0) + 2 * bumps)
    _place(program, layout, weights)
    words = program.vocabulary
    embed, positions, unembed = (torch.zeros(n, width) for n in (len(words), program.length, len(words)))
    embed[: len(program.tokens), :r], positions[:, :r] = program.weights["embed"], program.weights["positions"]
    unembed[:, :r] = program.unembedding()
    rotation = torch.eye(graph.n_heads * d_head, dtype=torch.float64)
    if spare:
        others = [i for i, word in enumerate(words) if word not in program.answer_words]
        unembed[others, r : r + spare] = torch.randn(len(others), spare, generator=_rng(program, "unembedding"))
        _add_bumps(program, layout, weights, unembed, bumps)
        _add_distractors(program, layout, weights, slice(r, r + spare), bumps)
        rotation = rotation_of(len(rotation), (2 * width, 2 * width + 1), _rng(program, "rotation"))
    config = {
        "vocab_size": len(words),
        "n_positions": program.length,
        "n_embd": len(rotation),
        "n_layer": graph.n_layers,
        "n_head": graph.n_heads,
        "n_inner": weights.mlp_in.shape[-1],
        "activation_function": "relu",
        "scale_attn_weights": False,
        "tie_word_embeddings": False,
        "bos_token_id": words.index("BOS"),
        "eos_token_id": words.index("BOS"),
    }
    return config, weights.state(embed, positions, unembed, rotation)


def _place(program: Program, layout: Layout, weights: Weights) -> None:
    """Put the program's heads and MLPs in their places."""
    r = program.width
    for name, x in program.weights.items():
        number, _, part = name.removeprefix("layer").partition(".")
        if part == "mlp.in":
            bias, write = _off_the_kink(program, x, program.weights[name.replace("in", "out")])
            weights.add_neurons(layout.layers[int(number)], x, write, bias)
        elif part.startswith("head"):
            head, _, kind = part.removeprefix("head").partition(".")
            where = layout.layers[int(number)], layout.heads[int(number)][int(head)]
            if kind == "o":
                weights.o[where][: len(x), :r] = x
            else:
                getattr(weights, kind)[where][:r, : x.shape[1]] = x


def _off_the_kink(program: Program, read: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
    """A bias for neurons that would be at exactly 0, where rounding decides their derivative, and their new output.

    The neurons of a map of categories are 1 or 0. With the bias they are 1 - KINK, scaled back, or off.
    """
    constant = program.weights["embed"].sum(0) == len(program.tokens)  # the dimension that is 1 for all tokens
    varying = read.masked_fill(constant[:, None], 0.0)
    # Pairs of neurons that pass on x as relu(x) - relu(-x) are not categories.
    linear = torch.stack([(varying == -column[:, None]).all(0).any() for column in varying.T])
    category = (varying.abs().amax(0) == 1) & ~linear
    return -KINK * category, torch.where(category[:, None], write / (1 - KINK), write)


def _free_heads(layout: Layout) -> list[tuple[int, int]]:
    """The (layer, head) of all heads that the program does not use."""
    program_heads = {(at, head) for at, heads in zip(layout.layers, layout.heads, strict=True) for head in heads}
    every = product(range(layout.graph.n_layers), range(layout.graph.n_heads))
    return [place for place in every if place not in program_heads]


def _add_distractors(program: Program, layout: Layout, weights: Weights, spare: slice, bumps: int) -> None:
    """Random heads, where there is room, and random neurons; they read everything and write to spare dimensions."""
    rng, d_head, size = _rng(program, "distractors"), weights.q.shape[-1], spare.stop - spare.start

    def noise(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=rng) * scale

    for place in _free_heads(layout)[bumps:]:
        for part in (weights.q, weights.k, weights.v):
            part[place][: spare.stop] = noise(spare.stop, d_head, scale=0.3)
        weights.o[place][:, spare] = noise(d_head, size, scale=d_head**-0.5)
    for layer in range(layout.graph.n_layers):
        write = torch.zeros(NEURONS, weights.width)
        write[:, spare] = noise(NEURONS, size, scale=0.25)
        weights.add_neurons(layer, noise(spare.stop, NEURONS, scale=0.3), write, noise(NEURONS, scale=0.3))


def _add_bumps(program: Program, layout: Layout, weights: Weights, unembed: Tensor, bumps: int) -> None:
    """Heads that copy a property of one token, and an MLP that adds |s - 1/2| - 1/2 = 0 of it to an answer."""
    if not bumps:
        return
    rng, answer = _rng(program, "bumps"), weights.width - 1
    for i, word in enumerate(program.answer_words):
        unembed[program.vocabulary.index(word), answer] = 1.0 if i % 2 else -1.0
    for i, (layer, head) in enumerate(_free_heads(layout)[:bumps]):
        s = weights.width - 1 - bumps + i
        position = int(torch.randint(1, program.length, (), generator=rng))
        weights.q_bias[layer, head, 0] = SURE
        weights.k[layer, head, : program.width, 0] = program.weights["positions"][position]
        weights.v[layer, head, : program.width, 0] = _property(program, rng)
        weights.o[layer, head, 0, s] = 1.0
        at = int(torch.randint(layer, layout.graph.n_layers, (), generator=rng))
        read, write = torch.zeros(weights.width, 2), torch.zeros(2, weights.width)
        read[s], write[:, answer] = torch.tensor([1.0, -1.0]), HEIGHT
        weights.add_neurons(at, read, write, torch.tensor([-0.5, 0.5]))
        weights.mlp_out_bias[at, answer] -= HEIGHT / 2


def _property(program: Program, rng: torch.Generator) -> Tensor:
    """A direction that reads 1 for half of the tokens, and 0 for the others and BOS."""
    embed, tokens = program.weights["embed"], [i for i, word in enumerate(program.tokens) if word != "BOS"]
    chosen = [tokens[i] for i in torch.randperm(len(tokens), generator=rng)[: len(tokens) // 2].tolist()]
    varying = embed * (embed.sum(0) == 1)  # without the dimension that is 1 for all
    return varying[chosen].sum(0)


@dataclass(frozen=True)
class Compiled:
    """A compiled model, its data and its true circuit."""

    program: Program
    level: str
    model: Transformer

    @property
    def name(self) -> str:
        return self.program.name if self.level == "plain" else f"{self.program.name}-{self.level}"

    @cached_property
    def task(self) -> Task:
        """The pairs to attribute."""
        return self.all_pairs[:ATTRIBUTED]

    @cached_property
    def held_out(self) -> Task:
        """The pairs to measure circuits on."""
        return self.all_pairs[ATTRIBUTED:]

    @cached_property
    def all_pairs(self) -> Task:
        words = self.program.vocabulary

        def ids(texts: Iterable[str]) -> Tensor:
            return torch.tensor([[words.index(word) for word in text.split()] for text in texts])

        clean, corrupted = (ids(f"BOS {pair[side]}" for pair in self.program.pairs) for side in (0, 1))
        labels = ids(f"{right} {wrong}" for *_, right, wrong in self.program.pairs)
        return Task(clean, corrupted, labels, metric=logit_difference, name=self.program.name)

    @property
    def kinds(self) -> dict[str, str]:
        """The true edges, and the kind of each: ``saturated``, ``redundant`` or ``open`` (``benchmarks/truth``)."""
        layout = layout_of(self.program, self.level)
        return {layout.edge(edge): kind for edge, kind in _true_edges()[self.program.name].items()}

    @property
    def circuit(self) -> Circuit:
        """The true circuit."""
        graph, kinds = self.model.graph, self.kinds
        index = torch.tensor([graph.index(edge) for edge in kinds], dtype=torch.long, device="cpu").view(-1, 2)
        recipe = Recipe(model=self.name, task=self.program.name, method="compiled")
        return Circuit(graph, index, torch.ones(len(index), device="cpu"), recipe)

    def save(self, folder: Path) -> None:
        """Write a checkpoint that transformers can load, ``pairs.csv`` for ``--data``, and the true circuit."""
        from safetensors.torch import save_file
        from transformers import GPT2Config

        folder.mkdir(parents=True, exist_ok=True)
        config, state = build(self.program, self.level)
        GPT2Config(**config, architectures=["GPT2LMHeadModel"]).save_pretrained(str(folder))
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        hf_tokenizer(self.program).save_pretrained(str(folder))
        out = io.StringIO()
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(["clean", "corrupted", "answers", "wrong_answers"])
        lines.writerows([a, b, f" {right}", f" {wrong}"] for a, b, right, wrong in self.program.pairs)
        write_atomically(folder / "pairs.csv", out.getvalue())
        self.circuit.save(folder / "circuit.json")


def hf_model(program: Program, level: str) -> Any:
    """The compiled program as a ``transformers`` model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config, state = build(program, level)
    with torch.random.fork_rng(devices=[]):
        model: Any = GPT2LMHeadModel(GPT2Config(**config))
    model.load_state_dict(state)
    return model.eval()


def hf_tokenizer(program: Program) -> Any:
    """A tokenizer that splits text at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(program.vocabulary)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=words, bos_token="BOS", unk_token="[UNK]")


def load_compiled(name: str, level: str = "plain") -> Compiled:
    """The program of that name as a model, at a level of difficulty, with its tasks and its true circuit."""
    if level not in LEVELS:
        raise unknown("level of difficulty", level, LEVELS)
    program = load_program(name)
    model = load_model(hf_model(program, level), tokenizer=hf_tokenizer(program))
    compiled = Compiled(program, level, model)
    return replace(compiled, model=replace(model, name=compiled.name))
