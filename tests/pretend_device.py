"""A device that is not the CPU, with CPU memory behind it, on which mixing devices is an error as on a GPU.

PyTorch leaves a place for backends of others (PrivateUse1), and lets Python fill it. Here every tensor on the device
``pretend`` wraps one on the CPU. An operation unwraps its arguments, runs on the CPU and wraps its result. As on a GPU,
an operation on tensors of both devices is refused, unless one is a scalar, or an index, or it copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.utils.backend_registration as registration
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretend"
_COPIES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
_INDEXED = ("aten::index", "aten::_index", "aten::index_put")


class _Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> _Wrapped:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            on_cpu.size(),
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, on_cpu: torch.Tensor) -> None:
        self._on_cpu = on_cpu

    def __repr__(self, **_: Any) -> str:
        return f"{NAME}({self._on_cpu})"

    def tolist(self) -> Any:  # PyTorch does not dispatch this
        return self._on_cpu.tolist()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees operations that create a tensor from nothing, too."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})


def _run(op: Any, args: Any, kwargs: Any) -> Any:
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    here = {id(x._on_cpu): x for x in tensors if isinstance(x, _Wrapped)}
    name, device = op._schema.name, kwargs.get("device")
    if here and name not in _COPIES and not name.startswith(_INDEXED):
        other = [tuple(x.shape) for x in tensors if not isinstance(x, _Wrapped) and x.ndim]
        if other:
            raise RuntimeError(f"{op}: expected all tensors to be on the same device, got {other} on the CPU")
    wraps = bool(here) if device is None else torch.device(device).type == NAME

    def unwrapped(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return x._on_cpu if isinstance(x, _Wrapped) else x

    def wrapped(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not wraps:
            return x
        return here.get(id(x)) if id(x) in here else _Wrapped(x)

    plain_args, plain_kwargs = pytree.tree_map(unwrapped, (args, kwargs))
    return pytree.tree_map(wrapped, op(*plain_args, **plain_kwargs))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return _Wrapped(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> torch.Tensor:
    return _Wrapped(torch.empty(size, dtype=dtype, device="cpu"))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    plain = [x._on_cpu if isinstance(x, _Wrapped) else x for x in (source, target)]
    plain[1].copy_(plain[0])
    return target


class _Module(registration._DummyBackendModule):
    """``torch.pretend``, as ``torch.cuda``."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


@cache
def _register() -> torch.library.Library:
    """Name the backend, and give it what C++ asks it for. This cannot be undone within a process."""
    registration._setup_privateuseone_for_python_backend(NAME, _Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    return library


@contextmanager
def pretend_device() -> Iterator[str]:
    """The name of the device, which exists within the block."""
    _register()
    with _Mode():
        yield NAME
