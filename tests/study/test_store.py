"""Cells and keys: what is finished is found again, and nothing else is taken for it."""

from __future__ import annotations

import json

import pytest
import torch

from gradpath.errors import GradpathWarning
from gradpath.model.load import load_model
from gradpath.runtime.files import sealed
from gradpath.scores import Scores
from gradpath.study.bench import Store, digest
from gradpath.tasks import load_task
from gradpath.tasks.task import task_digest


def test_a_kept_cell_is_found_by_its_key(tmp_path):
    store, key = Store(tmp_path), {"kind": "x", "edges": 3}
    assert store.cell(key) is None
    store.keep_cell(key, {"value": 0.1 + 0.2})
    assert store.cell({"edges": 3, "kind": "x"}) == {"value": 0.1 + 0.2}
    assert store.cell({"kind": "x", "edges": 4}) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:20],
        lambda text: text.replace("0.25", "0.35"),
        lambda text: text.replace('"kind": "x"', '"kind": "y"'),
        lambda text: json.dumps({"key": {"kind": "x"}, "value": {"error": 1}}),  # without a digest
        lambda text: json.dumps(sealed({"value": {"error": 1}})),
        lambda text: json.dumps(sealed({"key": {"kind": "x"}, "value": 1})),
        lambda text: "[1]",
        lambda text: "null",
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_cell_is_measured_again_with_a_warning(tmp_path, damage):
    store, key = Store(tmp_path), {"kind": "x"}
    store.keep_cell(key, {"error": 0.25})
    assert store.cell(key) == {"error": 0.25}
    (file,) = (tmp_path / "cells").iterdir()
    file.write_text(damage(file.read_text()))
    with pytest.warns(GradpathWarning, match=rf"{file.name} is damaged .*, so it is measured again"):
        assert store.cell(key) is None


def test_damaged_scores_are_computed_again_with_a_warning(tiny, tmp_path):
    store, key = Store(tmp_path), {"kind": "scores", "method": "x"}
    scores = store.keep_scores(key, Scores(tiny.graph, torch.ones(tiny.graph.mask.shape)), 1.0)
    assert store.scores(key).values.equal(scores.values)
    (file,) = (tmp_path / "scores").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-2] + b"\x00" + content[-1:])  # another finite number
    with pytest.warns(GradpathWarning, match=rf"{file.name} is damaged, so the scores are computed again"):
        assert store.scores(key) is None


def test_a_cell_of_another_key_under_the_same_name_is_not_taken(tmp_path):
    store, key = Store(tmp_path), {"kind": "x", "edges": 3}
    store.keep_cell(key, {"value": 1})
    (file,) = (tmp_path / "cells").iterdir()
    store.keep_cell({"kind": "x", "edges": 4}, {"value": 1})
    (other,) = {*(tmp_path / "cells").iterdir()} - {file}
    other.replace(file)
    assert store.cell(key) is None


def test_file_names_do_not_depend_on_the_order_of_the_key():
    assert digest({"a": [1, 2], "b": {"c": 1}}) == digest({"b": {"c": 1}, "a": [1, 2]})
    assert digest({"a": 1}) != digest({"a": 2})


def test_the_digest_changes_with_any_weight(tiny, tiny_folder):
    assert load_model(str(tiny_folder)).digest == tiny.digest
    assert tiny.to(dtype=torch.float64).digest != tiny.digest
    for part in ("w_qkv", "w_o", "w_in", "w_out"):
        changed = load_model(str(tiny_folder))
        weight = getattr(changed.layers[1], part)
        with torch.no_grad():
            weight[len(weight) // 2, weight.shape[1] // 2] += 1e-6  # in the middle: every value counts
        assert changed.digest != tiny.digest


def test_the_tasks_digest_changes_with_examples_and_bos(tiny, tiny_folder):
    task = load_task("ioi", tiny, n=4)
    assert task_digest(task, tiny.tokenizer) == task_digest(load_task("ioi", tiny, n=4), tiny.tokenizer)
    assert task_digest(task, tiny.tokenizer) != task_digest(load_task("ioi", tiny, n=4, seed=1), tiny.tokenizer)
    assert task_digest(task, tiny.tokenizer) != task_digest(task, load_model(str(tiny_folder), bos=False).tokenizer)
