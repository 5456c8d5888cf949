"""Refusing configuration values that an adapter does not implement, by name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gradpath.errors import InputError


def only(family: str, name: str, value: Any, known: Collection[Any]) -> Any:
    """``value`` itself, if the adapter implements it."""
    if value not in known:
        names = ", ".join(repr(x) for x in known)
        raise InputError(
            f"this {family} model has {name} = {value!r}, which gradpath does not implement: it knows "
            f"{names}. Its scores would be wrong, so the model is not loaded."
        )
    return value
