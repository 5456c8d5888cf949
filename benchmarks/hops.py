"""How far one has to go to follow ``gradpath find``: the functions it runs, their files, and the changes of file.

    python benchmarks/hops.py --examples 10                 options are those of ``gradpath find``
    python benchmarks/hops.py --list --examples 10          and every function, in the order of its first call

Every function counts once, at its first call. A change of file is a function in another file than the one before.
Lambdas, comprehensions and code that runs while a module is imported do not count. "Attribution" is what
``attribute_at_steps`` calls.
"""

from __future__ import annotations

import inspect
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import gradpath
from gradpath import cli

ROOT = Path(gradpath.__file__).parent
ATTRIBUTE = (str(ROOT / "attribution" / "attribute.py"), "attribute_at_steps")


class Visit(NamedTuple):
    """The first call of a function."""

    file: str
    name: str
    in_attribution: bool


def trace(arguments: list[str]) -> list[Visit]:
    """Run ``gradpath`` with these arguments: the functions that it calls, in the order of their first calls."""
    visits: dict[tuple[str, str], Visit] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        key = code.co_filename, code.co_qualname
        is_function = code.co_flags & inspect.CO_OPTIMIZED and "<" not in code.co_name
        if event != "call" or key in visits or not is_function or not key[0].startswith(str(ROOT)):
            return
        callers = list[tuple[str, str]]()
        caller: FrameType | None = frame
        while caller is not None:
            callers.append((caller.f_code.co_filename, caller.f_code.co_name))
            caller = caller.f_back
        if not any(name == "<module>" and file.startswith(str(ROOT)) for file, name in callers):
            visits[key] = Visit(str(Path(key[0]).relative_to(ROOT)), key[1], ATTRIBUTE in callers)

    sys.setprofile(note)
    try:
        cli.main(arguments)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    return list(visits.values())


def summary(what: str, visits: list[Visit]) -> str:
    changes = sum(before.file != after.file for before, after in pairwise(visits))
    files = len({visit.file for visit in visits})
    return f"{what}: {len(visits)} functions in {files} files, {changes} changes of file"


def main() -> None:
    visits = trace(["find", *(word for word in sys.argv[1:] if word != "--list")])
    if "--list" in sys.argv:
        print("\n".join(f"{'A' if visit.in_attribution else ' '} {visit.file} {visit.name}" for visit in visits))
    print(summary("find", visits))
    print(summary("attribution", [visit for visit in visits if visit.in_attribution]))


if __name__ == "__main__":
    main()
