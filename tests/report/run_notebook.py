"""Run a notebook's code cells in order, as a kernel would, showing what each ends with.

A kernel needs Jupyter; this needs nothing. Called by a test in a process of its own::

    python run_notebook.py notebooks/tour.ipynb
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any


def code_cells(file: Path) -> list[str]:
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(code: str, names: dict[str, Any]) -> None:
    """Run one cell; its last line, if it is an expression, is shown as a notebook would."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
        sys.stdout.write(shown + "\n")


if __name__ == "__main__":
    together: dict[str, Any] = {}
    for cell in code_cells(Path(sys.argv[1])):
        run(cell, together)
