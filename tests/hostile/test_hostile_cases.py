"""Files made to do harm, by hand: code that wants to be run, and little that claims to be much."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from readers import circuit, scores, words, written
from small_models import TINY, random_hf
from test_hostile_files import _bounded  # noqa: F401 (memory is bounded here too)

import gradpath as gp
from gradpath import formats
from gradpath.errors import InputError
from gradpath.model.file_checks import GgufFile


class Bomb:
    """Pickled, it is a call that leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Where code that should never run would leave its mark."""
    yield tmp_path / "trace"
    assert not (tmp_path / "trace").exists(), "code from the file was run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_hf(*TINY["gpt2"]).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def test_code_in_the_weights_of_a_checkpoint_is_not_run(folder, trace):
    (folder / "model.safetensors").unlink()
    torch.save({"transformer.wte.weight": Bomb(trace), "pad": torch.zeros(10_000)}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no model could be loaded"):
        gp.load_model(folder)


@pytest.mark.parametrize("kind", ["gpt2", "someone_elses"])
def test_code_beside_a_checkpoint_is_not_run(folder, trace, kind):
    (folder / "theirs.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    names = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    change_config(folder, model_type=kind, auto_map={**names, "AutoTokenizer": ["theirs.Tokens", None]})
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["theirs.T", None]}}))
    if kind == "gpt2":  # a family that is known here: its own code is used, theirs is left alone
        assert gp.load_model(folder).graph.n_layers == 3
    else:
        with pytest.raises(InputError, match="not supported"):
            gp.load_model(folder)


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ({"n_layer": 10**9}, "layers"),
        ({"n_embd": 3 * 10**5}, "numbers, and its files have only"),
        ({"vocab_size": 10**9}, "numbers, and its files have only"),
        ({"n_positions": 10**9}, "numbers, and its files have only"),
        ({"n_inner": 10**9}, "numbers, and its files have only"),
        ({"n_head": 0}, "no model could be loaded"),
        ({"n_layer": -1}, "layers"),
        ({"n_layer": "many"}, "no model could be loaded"),
    ],
    ids=str,
)
def test_a_small_checkpoint_that_claims_to_be_large_is_refused(folder, claim, told):
    change_config(folder, **claim)
    with pytest.raises(InputError, match=told):
        gp.load_model(folder)


def test_a_configuration_alone_does_not_become_a_model_of_seven_billion_numbers(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match="numbers, and its files have only 0 bytes"):
        gp.load_model(tmp_path)


def gguf(*, tensors: int = 0, fields: bytes = b"", count: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + fields


def gguf_string(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


@pytest.mark.parametrize(
    "content",
    [
        gguf(fields=gguf_string(b"x") + struct.pack("<IIQ", 9, 0, 2**60)),  # an array of 2^60 bytes
        gguf(fields=gguf_string(b"x") + struct.pack("<IIQ", 9, 9, 2**60)),  # of arrays
        gguf(fields=gguf_string(b"x", 2**63)),
        gguf(count=2**62),
        gguf(count=0, tensors=2**62),
        gguf(fields=gguf_string(b"x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5_000),  # nested
        b"GGUF",
        b"",
    ],
    ids=["array", "arrays", "name", "fields", "tensors", "nested", "magic", "empty"],
)
def test_a_gguf_file_that_claims_more_than_it_has_is_refused(content, tmp_path):
    (tmp_path / "model.gguf").write_bytes(content)
    for read in (GgufFile.read, gp.load_model):
        with pytest.raises(InputError):
            read(tmp_path / "model.gguf")


def test_entities_that_grow_are_not_expanded(tmp_path):
    entities = '<!ENTITY a0 "lol">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    text = f"<?xml version='1.0'?><!DOCTYPE graphml [{entities}]><graphml><data>&a11;</data></graphml>"
    (tmp_path / "bomb.graphml").write_text(text)
    with pytest.raises(InputError):
        formats.read(tmp_path / "bomb.graphml")


def test_an_entity_does_not_read_other_files(tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    whole = written(".graphml")(tmp_path).decode()
    entity = f'<!DOCTYPE graphml [<!ENTITY x SYSTEM "{(tmp_path / "secret").as_uri()}">]>'
    (tmp_path / "x.graphml").write_text(whole.replace("?>", f"?>{entity}", 1).replace(";m0<", ";&x;<", 1))
    with pytest.raises(InputError) as caught:
        formats.read(tmp_path / "x.graphml")
    assert "SECRET" not in str(caught.value)


def test_a_small_file_of_scores_does_not_get_room_for_a_large_model(tmp_path):
    file = tmp_path / "scores.eap-ig.json"
    formats.write(scores(), file, d_model=8)
    file.write_text(file.read_text().replace('n_layers": 2', 'n_layers": 4000'))
    with pytest.raises(InputError, match=r"scores of \d+ edges, but its model has"):
        formats.read(file)


@pytest.mark.parametrize(
    "shape",
    [
        {"n_layers": 10_000, "n_heads": 10_000, "parallel": False},
        {"n_layers": 2.0, "n_heads": 2, "parallel": False},
        {"n_layers": True, "n_heads": 2, "parallel": False},
        {"n_layers": 2, "n_heads": 2, "parallel": "no"},
        {"n_layers": 2, "n_heads": -2, "parallel": False},
        {"n_layers": 2},
        [2, 2, False],
    ],
    ids=str,
)
def test_a_shape_that_is_no_model_is_refused(shape, tmp_path):
    file = tmp_path / "circuit.json"
    circuit().save(file)
    content = {**json.loads(file.read_text()), "graph": shape, "edges": []}
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"cannot be a model|has no|must be an object"):
        gp.load_circuit(file)


def test_an_error_is_one_line_whatever_a_file_holds(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("\x1b[2Jclean,corrupted\n" + "x" * 10_000 + ",y\n")
    with pytest.raises(InputError) as caught:
        gp.load_task(None, words(), data=file, n=1)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert len(str(InputError("y" * 10**6 + "."))) < 1000
