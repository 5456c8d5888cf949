"""How far one has to go to follow ``gradpath find``: the functions it runs, their files, and the changes of file.

    python benchmarks/hops.py --examples 10                 options are those of ``gradpath find``
    python benchmarks/hops.py --list --examples 10          and every function, in the order of its first call

Every function counts once, at its first call. A change of file is a function in another file than the one before.
Lambdas, comprehensions and code that runs while a module is imported do not count. "Attribution" is what
``attribute_at_steps`` calls. Last comes how often the calls of ``REPEATED`` are made: the examples of a split should be
encoded once, no record be read, and no circuit have its mask made twice.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import gradpath
from gradpath import cli

ROOT = Path(gradpath.__file__).parent
REPEATED = {"encode": "tasks/task.py", "read_record": "recipe.py", "Circuit.mask": "circuit.py"}
ATTRIBUTE = (str(ROOT / "attribution" / "attribute.py"), "attribute_at_steps")


class Visit(NamedTuple):
    """The first call of a function."""

    file: str
    name: str
    in_attribution: bool


def trace(arguments: list[str]) -> tuple[list[Visit], Counter[tuple[str, str]]]:
    """Run ``gradpath`` with these arguments: the functions in the order of their first calls, and the calls of each."""
    visits: dict[tuple[str, str], Visit] = {}
    calls = Counter[tuple[str, str]]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        key = code.co_filename, code.co_qualname
        is_function = code.co_flags & inspect.CO_OPTIMIZED and "<" not in code.co_name
        calls[key] += event == "call"
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
    return list(visits.values()), calls


def summary(what: str, visits: list[Visit]) -> str:
    changes = sum(before.file != after.file for before, after in pairwise(visits))
    files = len({visit.file for visit in visits})
    return f"{what}: {len(visits)} functions in {files} files, {changes} changes of file"


def main() -> None:
    visits, calls = trace(["find", *(word for word in sys.argv[1:] if word != "--list")])
    if "--list" in sys.argv:
        print("\n".join(f"{'A' if visit.in_attribution else ' '} {visit.file} {visit.name}" for visit in visits))
    print(summary("find", visits))
    print(summary("attribution", [visit for visit in visits if visit.in_attribution]))
    print(*(f"{name}: {calls[str(ROOT / file), name]} calls" for name, file in REPEATED.items()), sep=", ")


if __name__ == "__main__":
    main()
