"""One flipped bit, anywhere in a file that we read back, ends in a refusal, in a recomputation, or in the same result.

The files that gradpath writes carry digests, so this holds for all of them. It cannot hold for what users bring: a
flipped bit in a weight of their own checkpoint is another model, and there is nothing to compare it with. Such a model
has another digest, which circuits and scores record, so ``gradpath eval`` says that the weights are others. The same
goes for the files of other tools (``formats``), and for tables of prompts, which people edit.

``make fuzz`` flips a thousand bits in each kind of file, the ordinary tests a few.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from readers import CELL, CELL_KEY, circuit, example_scores, scores
from small_models import TINY, random_hf, tiny_model
from transformers import PreTrainedTokenizerFast

import gradpath as gp
from gradpath.errors import GradpathError
from gradpath.evaluation.result import load_result
from gradpath.model.cache import cached_model
from gradpath.study.bench import Store

FLIPS = int(os.environ.get("GRADPATH_FUZZ", "200")) // 10
IDS = torch.tensor([[3, 4, 5]])


@dataclass(frozen=True)
class Kind:
    """How files of a kind are written to a folder, and read back: a result that can be compared, None for none."""

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    share: float = 1.0  # of the flips in the ordinary tests: models take longer
    same: Callable[[Any, Any], bool] = lambda found, right: found is None or found == right


def of_scores(found: gp.Scores) -> Any:
    parts = [found.values, found.examples]
    return found.graph, (found.recipe, found.facts), [part.tolist() for part in parts if part is not None]


def of_circuit(found: gp.Circuit) -> Any:
    return found.graph, (found.recipe, found.facts), found.edges, found.scores.tolist()


def write_result(folder: Path) -> None:
    model = tiny_model("gpt2")
    task = gp.Task(IDS, IDS.flip(1), IDS[:, :2])
    gp.evaluate(model, gp.select(gp.attribute(model, task, "eap"), 9), task).save(folder / "result.json")


def of_result(folder: Path) -> Any:
    found = load_result(folder / "result.json")
    values = (found.circuit_values, found.clean_values, found.corrupted_values)
    counts = found.edges_requested, found.edges_kept
    return found.recipe, found.facts, counts, [x.tolist() for x in values], found.clean_prompts


SCORES_KEY = {"kind": "scores", "method": "eap", "options": {"steps": 5}}


def stored_scores(folder: Path) -> Any:
    found = Store(folder).scores(SCORES_KEY)
    return None if found is None else of_scores(found)


def convert() -> tuple[Any, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers

    fast = Tokenizer(models.BPE({x: i for i, x in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tiny_model("mistral"), PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>")


def of_converted(folder: Path) -> Any:
    model, tokenizer = cached_model(folder / "model", convert)
    return model.digest, model.logits(IDS).tolist(), tokenizer("a b")["input_ids"], tokenizer.bos_token_id


def of_checkpoint(folder: Path) -> Any:
    model = gp.load_model(folder)
    return model.digest, model.logits(IDS).tolist()


def same_or_another_digest(found: Any, right: Any) -> bool:
    return bool(found == right or found[0] != right[0])


def saved(what: Callable[[], Any], name: str) -> Callable[[Path], None]:
    return lambda folder: what().save(folder / name)


KINDS = {
    "circuit": Kind(saved(circuit, "c.json"), lambda folder: of_circuit(gp.load_circuit(folder / "c.json"))),
    "scores": Kind(saved(scores, "s.safetensors"), lambda folder: of_scores(gp.load_scores(folder / "s.safetensors"))),
    "scores of examples": Kind(
        saved(example_scores, "s.safetensors"), lambda folder: of_scores(gp.load_scores(folder / "s.safetensors"))
    ),
    "result": Kind(write_result, of_result),
    "cell": Kind(lambda folder: Store(folder).keep_cell(CELL_KEY, CELL), lambda folder: Store(folder).cell(CELL_KEY)),
    "stored scores": Kind(lambda folder: Store(folder).keep_scores(SCORES_KEY, scores(), 1.0), stored_scores),
    "converted model": Kind(of_converted, of_converted, 0.5, lambda found, right: found == right),
    "checkpoint": Kind(
        lambda folder: random_hf(*TINY["gpt2"]).save_pretrained(folder), of_checkpoint, 0.3, same_or_another_digest
    ),
}


def flipped(content: bytes, draw: random.Random) -> bytes:
    """One bit, half of the time near the front, where names, sizes and digests are."""
    at = draw.randrange(len(content) if draw.random() < 0.5 else min(len(content), 2000))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


@pytest.mark.filterwarnings("ignore::gradpath.errors.GradpathWarning")
@pytest.mark.parametrize("name", KINDS)
def test_a_flipped_bit_never_gives_another_result(name, tmp_path, monkeypatch):
    kind, folder = KINDS[name], tmp_path / "files"
    monkeypatch.setenv("GRADPATH_CACHE", str(folder))
    folder.mkdir()
    kind.write(folder)
    right = kind.read(folder)
    contents = {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    quick = FLIPS <= 30
    draw = random.Random(name if quick else None)
    ends = {"refused": 0, "made again": 0, "the same": 0, "another digest": 0}
    for _ in range(max(5, int(kind.share * FLIPS)) if quick else FLIPS):
        file = draw.choices(list(contents), [len(content) ** 0.5 for content in contents.values()])[0]
        file.write_bytes(flipped(contents[file], draw))
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                found = kind.read(folder)
        except GradpathError:
            ends["refused"] += 1
        else:
            assert kind.same(found, right), f"{file.name} is read as something else: {found}"
            again = found is None or any("again" in str(x.message) for x in warned)
            ends["made again" if again else "the same" if found == right else "another digest"] += 1
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert ends["refused"] + ends["made again"] + ends["another digest"] > 0, ends
    assert name == "checkpoint" or not ends["another digest"]
