"""Every reader of files: a valid file of each kind, how to damage its inside, and how to use what was read.

A new format is one entry in ``READERS``.
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from damage import as_json, damaged_bytes, damaged_text, damaged_tree
from hypothesis import strategies as st
from small_models import TINY, random_hf, tiny_model

import gradpath as gp
from gguf_writing import write_gguf
from gradpath import formats
from gradpath.errors import GradpathError
from gradpath.evaluation.result import Result
from gradpath.graph import Graph
from gradpath.model.cache import WEIGHTS, cached_model
from gradpath.model.file_checks import GgufFile
from gradpath.model.tokenizer import Tokenizer
from gradpath.recipe import Facts, Recipe
from gradpath.report.figure import fold
from gradpath.study.bench import Store
from gradpath.study.run import read_study

GRAPH = Graph(2, 2)


@dataclass(frozen=True)
class Reader:
    """How a kind of file is made, damaged inside, read and used; ``share`` of ten thousand cases are its.

    A sealed file has a digest of its content: ``use`` returns what it says, which no damage may change.
    """

    suffix: str
    valid: Callable[[Path], bytes]
    inside: Callable[[bytes], st.SearchStrategy[bytes]]
    use: Callable[[Path], Any]
    share: int
    sealed: bool = False


@cache
def scores() -> gp.Scores:
    values = torch.randn(GRAPH.n_sources, GRAPH.n_targets, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(model="m", task="ioi", method="eap", steps=1)
    return gp.Scores(GRAPH, values * GRAPH.mask, recipe, Facts(d_model=8, data={"seed": 0}))


@cache
def circuit() -> gp.Circuit:
    found = gp.select(scores(), n=30)
    found.notes["m0"] = {"name": "writer", "colour": "#d55e00", "note": "a note"}
    found.notes["a0.h0"] = found.notes["a1.h1"] = {"group": "pair"}
    return found


def written(suffix: str) -> Callable[[Path], bytes]:
    """A circuit, scores, or both, in the format that files with this suffix have."""
    both = formats.Content(scores(), circuit())
    what: Any = {".json": circuit(), ".safetensors": scores(), ".graphml": circuit()}.get(suffix, both)

    def valid(folder: Path) -> bytes:
        file = folder / f"valid{suffix}"
        formats.write(what, file)
        return file.read_bytes()

    return valid


def use_content(file: Path) -> None:
    """What a user does next with scores and circuits: look at them, choose from them, keep them."""
    found = formats.read(file)
    if found.scores is not None:
        assert found.scores.values.isfinite().all()
        gp.select(found.scores, n=1)
    if found.circuit is not None:
        assert found.circuit.scores.isfinite().all()
        assert len(set(found.circuit.edges)) == len(found.circuit)
        assert int(found.circuit.mask.sum()) == len(found.circuit)
        assert found.circuit.requested >= 0
        fold(found.circuit)
        found.circuit.save(file.with_name("again.json"))
        assert gp.load_circuit(file.with_name("again.json")).edges == found.circuit.edges


def use_circuit(file: Path) -> Any:
    use_content(file)
    found = gp.load_circuit(file)
    return found.graph, found.recipe, found.facts, found.edges, found.scores.tolist(), found.notes


def use_scores(file: Path) -> Any:
    use_content(file)
    found = gp.load_scores(file)
    values = [x.tolist() for x in (found.values, found.examples) if x is not None]
    assert found.examples is None or found.examples.isfinite().all()
    return found.graph, found.recipe, found.facts, values


def inside_json(whole: bytes) -> st.SearchStrategy[bytes]:
    """Damage by somebody who knows that a file without a digest is read, too."""
    tree = json.loads(whole)
    tree.pop("digest", None)
    return damaged_tree(tree).map(as_json)


def inside_safetensors(whole: bytes) -> st.SearchStrategy[bytes]:
    """The header's fields, and the JSON that stands as text in one of them."""
    size = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]

    def packed(tree: Any) -> bytes:
        told = as_json(tree)
        return struct.pack("<Q", len(told)) + told + data

    key, notes = next(iter(header.get("__metadata__", {}).items()), ("", "null"))
    if not key.startswith("gradpath"):
        return damaged_tree(header).map(packed)

    def noted(tree: Any) -> bytes:
        text = as_json(tree).decode("utf-8", "surrogatepass")
        return packed({**header, "__metadata__": {key: text}})

    tree = json.loads(notes)
    tree.pop("digest", None)  # a file without one is read, too
    return st.one_of(damaged_tree(header).map(packed), damaged_tree(tree).map(noted))


def inside_text(whole: bytes) -> st.SearchStrategy[bytes]:
    return damaged_text(whole.decode())


def inside_jsonl(whole: bytes) -> st.SearchStrategy[bytes]:
    rows = [json.loads(line) for line in whole.splitlines()]
    return damaged_tree(rows).map(
        lambda tree: b"\n".join(map(as_json, tree)) if isinstance(tree, list) else as_json(tree)
    )


ROWS = [
    {"clean": "a b c", "corrupted": "a d c", "answers": " b", "wrong_answers": " d"},
    {"clean": "d b c", "corrupted": "a b c", "answers": [" a", " b"], "wrong_answers": [3, 4]},
    {"clean": "c b a", "corrupted": "c d a", "answers": " c", "wrong_answers": " a"},
]
CSV = """clean,corrupted,answers,wrong_answers
a b c,a d c, b, d
"d b, c",a b c,"[' a', ' b']", c| d
c b a,c d a,b,d
"""


@cache
def words() -> Any:
    """A model, as far as a task is concerned: a byte-level tokenizer of the usual kind, with four words."""
    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    space = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"  # as byte-level tokenizers write it
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(space + letter for letter in "abcd")]
    fast = Fast(models.BPE({x: i for i, x in enumerate(pieces)}, [(space, letter) for letter in "abcd"]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast))
    return type("Words", (), {"tokenizer": tokenizer})()


def use_data(file: Path) -> None:
    task = gp.load_task(None, words(), data=file, n=None, split="all")
    assert len(task.clean) == len(task.corrupted) == len(task.labels) > 0
    assert torch.as_tensor(task.labels).dtype == torch.long


def model_file(name: str) -> Callable[[Path], bytes]:
    def valid(folder: Path) -> bytes:
        random_hf(*TINY["gpt2"]).save_pretrained(folder / "model")
        words().tokenizer.hf.save_pretrained(folder / "model")
        return (folder / "model" / name).read_bytes()

    return valid


def use_model_file(name: str) -> Callable[[Path], None]:
    def use(file: Path) -> None:
        (file.parent / "model" / name).write_bytes(file.read_bytes())
        use_model(file.parent / "model")

    return use


def use_model(source: Path) -> None:
    """Scores, and tokens of texts: a tokenizer that cannot be read leaves a model that takes token ids alone."""
    model = gp.load_model(source, bos=False)
    ids = torch.tensor([[3, 4, 5]])
    scores = gp.attribute(model, gp.Task(ids, ids.flip(1), ids[:, :2]), "eap")
    assert scores.values.isfinite().all()
    if model.tokenizer is None and source.suffix != ".gguf":
        raise GradpathError("It has no tokenizer.")
    for tokens in model.tokenizer.encode(["a b c", " d", "x"]) if model.tokenizer else ():
        assert all(type(i) is int and i >= 0 for i in tokens)
        assert isinstance(model.tokenizer.decode(tokens), str)


def valid_gguf(folder: Path) -> bytes:
    small = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 61}
    return write_gguf(random_hf(*TINY["gpt2"][:2], small), folder / "valid.gguf").read_bytes()


def inside_gguf(whole: bytes) -> st.SearchStrategy[bytes]:
    """The numbers and names at the front, where sizes are claimed."""
    front = whole[: whole.index(b"token_embd")]
    values = [2**64 - 1, 2**62, 2**40, 2**32, 10**6, 0, 4, 8, 9, 10, 11, 12, 13]

    def changed(places: list[tuple[int, int, int]]) -> bytes:
        found = bytearray(whole)
        for at, width, value in places:
            found[at : at + width] = struct.pack("<Q", value)[:width]
        return bytes(found)

    place = st.tuples(st.integers(0, len(front)), st.sampled_from([1, 4, 8]), st.sampled_from(values))
    return st.lists(place, min_size=1, max_size=3).map(changed)


CELL_KEY = {"kind": "circuit", "edges": 3, "found_on": {"weights": "ab", "options": {"steps": 5}}}
CELL = {"faithfulness": 0.25, "faithfulness_interval": [0.125, 0.5], "values": [1.5, -2.25]}


def valid_cell(folder: Path) -> bytes:
    store = Store(folder)
    store.keep_cell(CELL_KEY, CELL)
    (file,) = (folder / "cells").iterdir()
    return file.read_bytes()


def use_cell(file: Path) -> Any:
    """A cell is as it was written, or measured again."""
    (target,) = (file.parent / "cells").iterdir()
    target.write_bytes(file.read_bytes())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        value = Store(file.parent).cell(CELL_KEY)
    if value is None:
        raise GradpathError("; ".join(str(x.message) for x in warned) or "It is a cell of another key.")
    return value


@cache
def example_scores() -> gp.Scores:
    noise = torch.randn(3, *GRAPH.mask.shape, generator=torch.Generator().manual_seed(2)) * GRAPH.mask
    return gp.Scores(GRAPH, noise.mean(0), scores().recipe, scores().facts, examples=noise)


def valid_example_scores(folder: Path) -> bytes:
    example_scores().save(folder / "scores.safetensors")
    return (folder / "scores.safetensors").read_bytes()


def valid_result(folder: Path) -> bytes:
    values = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    Result(*values, 10, 8, ["a b"] * 4, ["a c"] * 4, Recipe(model="m")).save(folder / "result.json")
    return (folder / "result.json").read_bytes()


def use_result(file: Path) -> Any:
    found = gp.load_result(file)
    assert found.circuit_values.isfinite().all()
    found.save(file.with_name("again.json"))
    assert len(gp.load_result(file.with_name("again.json")).clean_prompts) in (0, len(found.clean_values))
    values = (found.circuit_values, found.clean_values, found.corrupted_values)
    return str(found), found.recipe, found.facts, [x.tolist() for x in values], found.clean_prompts


STUDY = """
title: A study
model: smollm2
task: [ioi, sva]
method: [eap, eap-ig+steps=3]
selection: [top, refined]
edges: 500
sparsity: 0.975
examples: 10
seed: [0, 1]
memory: 8GB
"""


def use_study(file: Path) -> None:
    study = read_study(file).study
    assert all(list(study.recipes(task, study.sizes)) for task in study.task_names)


def converted() -> tuple[Any, Any]:
    return tiny_model("mistral"), words().tokenizer.hf


def valid_converted(folder: Path) -> bytes:
    cached_model(folder / "model", converted)
    return (folder / "model" / WEIGHTS).read_bytes()


def use_converted(file: Path) -> Any:
    """A model that was changed since is converted again."""
    (file.parent / "model" / WEIGHTS).write_bytes(file.read_bytes())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model, tokenizer = cached_model(file.parent / "model", converted)
    assert model.digest == converted()[0].digest
    assert tokenizer("a b")["input_ids"] == words().tokenizer.hf("a b")["input_ids"]
    if warned:
        raise GradpathError(str(warned[0].message))


def jsonl(rows: list[Any]) -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows)


READERS = {
    "cell": Reader(".json", valid_cell, inside_json, use_cell, 1000, sealed=True),
    "result": Reader(".json", valid_result, inside_json, use_result, 600, sealed=True),
    "scores-of-examples": Reader(
        ".safetensors", valid_example_scores, inside_safetensors, use_scores, 300, sealed=True
    ),
    "circuit": Reader(".json", written(".json"), inside_json, use_circuit, 2800, sealed=True),
    "scores": Reader(".safetensors", written(".safetensors"), inside_safetensors, use_scores, 1500, sealed=True),
    "converted": Reader(".pt", valid_converted, damaged_bytes, use_converted, 50, sealed=True),
    "eap-ig": Reader(".eap-ig.json", written(".eap-ig.json"), inside_json, use_content, 2500),
    "graphml": Reader(".graphml", written(".graphml"), inside_text, use_content, 1600),
    "data-csv": Reader(".csv", lambda _: CSV.encode(), inside_text, use_data, 700),
    "data-jsonl": Reader(".jsonl", lambda _: jsonl(ROWS), inside_jsonl, use_data, 700),
    "study": Reader(".yaml", lambda _: STUDY.encode(), inside_text, use_study, 400),
    "gguf-facts": Reader(".gguf", valid_gguf, inside_gguf, GgufFile.read, 300),
    "gguf": Reader(".gguf", valid_gguf, inside_gguf, use_model, 100),
    **{
        name: Reader(Path(name).suffix, model_file(name), inside, use_model_file(name), 100)
        for name, inside in (
            ("config.json", inside_json),
            ("tokenizer.json", inside_json),
            ("model.safetensors", inside_safetensors),
        )
    },
}
