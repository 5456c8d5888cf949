"""A model whose layers lie on several devices gives what it gives on one, and never mixes the two.

There is one device on most machines that run this. So the second half pretends: every tensor is marked with
the device it would be on, marks spread from the operands of every operation to its result, forwards and
backwards, and an operation on two marks that is no way across is what a real device would refuse.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest
import torch
from covering import some
from small_models import prompts, tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gradpath as gp
from gradpath.errors import InputError, UsageError
from gradpath.model import load, transformer
from gradpath.model.load import load_model

TASK = prompts([6, 8, 6], [[0], [4], [2, 3]])


def found(model) -> list[Tensor]:
    """Numbers of everything that a split model can be used for."""
    made = [gp.attribute(model, TASK, method, steps=2, batch_size=2) for method in ("eap-ig", "eap-gp")]
    made += [gp.attribute(model, TASK, "eap", ablation=name) for name in ("zero", "mean-positional")]
    circuits = [gp.select(made[0], n=60), gp.select(made[2], n=60), *chosen(model, made[0])]
    results = [gp.evaluate(model, one, TASK) for one in circuits]
    return [scores.values for scores in made] + [result.circuit_values for result in results]


def chosen(model, scores) -> list[Any]:
    return [
        gp.select(scores, n=n, selection=how, model=model, task=TASK) for how, n in (("refined", 4), ("refined", 40))
    ]


@pytest.mark.parametrize("name", some(["gemma2", "neox", "deepseek-v3", "gpt-oss"], ["neox"]))
def test_a_spread_model_gives_the_same(name):
    whole = tiny_model(name)
    split = load.spread_over(whole, [torch.device("cpu"), torch.device("cpu")], [1.0, 1.0])
    for one, other in zip(found(whole), found(split), strict=True):
        assert torch.equal(one, other)


class Marks(TorchDispatchMode):
    """Which of two pretended devices every tensor is on."""

    def __init__(self, model) -> None:
        super().__init__()
        self.of: dict[int, str] = {}
        self.alive: list[Any] = []  # a storage that is freed would give its number to another
        self.mixed: list[str] = []
        self.crossed = 0
        for tensor in vars(model).values():
            self.mark(tensor, "home")
        for number, layer in enumerate(model.layers):
            for field in fields(layer):
                self.mark(getattr(layer, field.name), "home" if number == 0 else "away")

    def mark(self, x: Any, where: str) -> None:
        if isinstance(x, Tensor):
            self.alive.append(x.untyped_storage())
            self.of[x.untyped_storage()._cdata] = where

    def where(self, x: Any) -> str | None:
        return self.of.get(x.untyped_storage()._cdata) if isinstance(x, Tensor) and x.ndim else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        flat = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        marks = {self.where(x) for x in flat} - {None}
        if len(marks) > 1:
            frame = sys._getframe(1)
            while frame and "gradpath" not in frame.f_code.co_filename:
                frame = frame.f_back
            self.mixed.append(f"{func} at {frame and frame.f_code.co_filename}:{frame and frame.f_lineno}")
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and marks and self.where(x) is None:
                self.mark(x, sorted(marks)[0])
        return out


class Across(torch.autograd.Function):
    """The way from one device to the other: a copy with the other's mark, and back for the gradient."""

    @staticmethod
    def forward(ctx, x, marks, there):
        ctx.marks, ctx.here = marks, marks.where(x)
        marks.crossed += 1
        return Across.copied(x, marks, there)

    @staticmethod
    def backward(ctx, gradient):
        return Across.copied(gradient, ctx.marks, ctx.here), None, None

    @staticmethod
    def copied(x: Tensor, marks: Marks, there: str | None) -> Tensor:
        with torch.utils._python_dispatch._disable_current_modes():
            copy = x.detach().clone()
        marks.mark(copy, there or "home")
        return copy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neox", "gemma2", "deepseek-v3", "gpt-oss"])
def test_nothing_mixes_devices(name, monkeypatch):
    model = tiny_model(name)
    expected = [x.clone() for x in found(model)]
    marks = Marks(model)

    def to_device_of(x: Tensor, other: Tensor) -> Tensor:
        here, there = marks.where(x), marks.where(other)
        return x if there is None or here == there else Across.apply(x, marks, there)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("gradpath") and hasattr(module, "to_device_of"):
            monkeypatch.setattr(module, "to_device_of", to_device_of)
        if getattr(module, "__name__", "").startswith("gradpath") and hasattr(module, "same_device"):
            monkeypatch.setattr(module, "same_device", lambda x, y: marks.where(x) in (None, marks.where(y)))
    with marks:
        got = found(model)
    assert not marks.mixed, "\n".join(dict.fromkeys(marks.mixed))
    assert marks.crossed > 50
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(one, other)


def test_devices_are_filled_by_their_room():
    assert load.shares([1] * 6, [1, 1, 1]) == [0, 0, 1, 1, 2, 2]
    assert load.shares([4, 1, 1, 1, 1], [1, 1]) == [0, 1, 1, 1, 1]
    assert load.shares([1, 1, 1], [1]) == [0, 0, 0]


def test_a_device_map_is_a_list_of_devices(tmp_path):
    from small_models import tiny_hf

    hf = tiny_hf("gpt2")
    assert load_model(hf, device_map="cpu,cpu").device.type == "cpu"
    with pytest.raises(UsageError, match="device and device_map both say where the model goes"):
        load_model(hf, device="cpu", device_map="auto")
    with pytest.raises(InputError, match="'nowhere' cannot be used"):
        load_model(hf, device_map="cpu,nowhere")


def test_a_model_that_the_gpus_cannot_hold_is_refused(monkeypatch):
    import accelerate.utils

    monkeypatch.setattr(accelerate.utils, "get_max_memory", lambda: {0: 1000, 1: 500, "cpu": 10**12})
    with pytest.raises(InputError, match=r"the GPUs here have 0\.0 GB free"):
        load.gpus(tiny_model("gpt2"))
    assert transformer.same_device(torch.zeros(1), torch.zeros(1))


def test_what_is_written_for_one_device_says_so(monkeypatch):
    monkeypatch.setattr(transformer, "same_device", lambda x, y: False)
    with pytest.raises(UsageError, match="eap-ig-activations needs the whole model on one device"):
        gp.attribute(tiny_model("gpt2"), TASK, "eap-ig-activations")
