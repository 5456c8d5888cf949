"""Cells and keys: what is finished is found again, and nothing else is taken for it."""

from __future__ import annotations

import torch

from gradpath.grid.bench import task_digest
from gradpath.grid.store import Store, digest
from gradpath.model.load import load_model
from gradpath.tasks import load_task


def test_a_kept_cell_is_found_by_its_key(tmp_path):
    store, key = Store(tmp_path), {"kind": "x", "edges": 3}
    assert store.cell(key) is None
    store.keep_cell(key, {"value": 0.1 + 0.2})
    assert store.cell({"edges": 3, "kind": "x"}) == {"value": 0.1 + 0.2}
    assert store.cell({"kind": "x", "edges": 4}) is None


def test_a_damaged_cell_counts_as_unfinished(tmp_path):
    store, key = Store(tmp_path), {"kind": "x"}
    store.keep_cell(key, {"value": 1})
    (file,) = (tmp_path / "cells").iterdir()
    file.write_text(file.read_text()[:20])
    assert store.cell(key) is None


def test_a_cell_of_another_key_under_the_same_name_is_not_taken(tmp_path):
    store, key = Store(tmp_path), {"kind": "x", "edges": 3}
    store.keep_cell(key, {"value": 1})
    (file,) = (tmp_path / "cells").iterdir()
    file.write_text(file.read_text().replace('"edges": 3', '"edges": 4'))
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
    assert task_digest(task, tiny) == task_digest(load_task("ioi", tiny, n=4), tiny)
    assert task_digest(task, tiny) != task_digest(load_task("ioi", tiny, n=4, seed=1), tiny)
    assert task_digest(task, tiny) != task_digest(task, load_model(str(tiny_folder), bos=False))
