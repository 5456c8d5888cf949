"""What an installation costs: megabytes on disk of ``pip install gradpath``, and CPU seconds of first imports.

Sizes are those of the files that pip recorded, for gradpath and everything it needs without extras, in the environment
that runs this. Each import is a process of its own; the fastest of a few counts. Run it with
``python benchmarks/installed.py``.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import gradpath

TURNS = 5
SHELL = "from gradpath.cli import main\ntry:\n    main({})\nexcept SystemExit:\n    pass"
STARTS = {
    "python": "pass",
    "import gradpath": "import gradpath",
    "gradpath --help": SHELL.format(["--help"]),
    "gradpath ls methods": SHELL.format(["ls", "methods"]),
    "import torch": "import torch",
    "every public name": "import gradpath\n[getattr(gradpath, name) for name in gradpath.__all__]",
    "... and transformers": "import gradpath, transformers.models.auto.modeling_auto\ngradpath.load_model",
}


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A package and all that it needs without extras."""
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:  # needed on other systems
        return found
    for text in found[name].requires or ():
        one = Requirement(text)
        key = one.name.lower().replace("_", "-")
        if key not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            needed(key, found)
    return found


def megabytes(package: Distribution) -> float:
    files = {Path(str(package.locate_file(file))).resolve() for file in package.files or ()}
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def seconds(code: str) -> float:
    """CPU time of a new process that runs some code and nothing else."""
    timed = f"{code}\nimport sys, time\nprint(time.process_time(), file=sys.stderr)"
    runs = [
        subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True) for _ in range(TURNS)
    ]
    return min(float(run.stderr.split()[-1]) for run in runs)


def main() -> None:
    own = sum(
        file.stat().st_size for file in Path(gradpath.__file__).parent.rglob("*") if "__pycache__" not in file.parts
    )
    sizes = {name: megabytes(package) for name, package in needed("gradpath", {}).items()}
    sizes["gradpath"] = own / 1e6  # it may be installed in place
    print(f"{'on disk, MB':30}")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{name:30}{size:8.1f}")
    print(f"{f'{len(sizes)} packages':30}{sum(sizes.values()):8.1f}\n\n{'start, CPU seconds':30}")
    for name, code in STARTS.items():
        print(f"{name:30}{seconds(code):8.2f}")


if __name__ == "__main__":
    main()
