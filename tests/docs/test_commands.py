"""Every command in the documents, notebooks, examples and docstrings can be typed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.core import ParameterSource

from gradpath import registry
from gradpath.attribution.methods import METHODS
from gradpath.cli import VERBS, gradpath
from gradpath.paper import ABOUT
from gradpath.recipe import Recipe
from gradpath.selection import SELECTIONS
from gradpath.study.run import read_study
from gradpath.tasks import TASKS

ROOT = Path(__file__).parents[2]
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "docs/**/*.py",
    "notebooks/*.ipynb",
    "examples/**/*.*",
    "benchmarks/*.*",
)
FILES = sorted(file for place in (*PLACES, "src/gradpath/**/*.py") for file in ROOT.glob(place) if file.is_file())
COMMAND = re.compile(rf"(?:^|[\s`!(])gradpath ((?:{'|'.join(VERBS)})\b[^`\n#;&|>]*)")
# What results pages measured and gradpath no longer has (those pages name the commits that have it), and what the
# plug-in in examples/ adds.
OTHERS = {"eap-moves", "eap-boxed", "eap-monotone", "eap-average", "eap-integral", "ratio", "stable", "balanced"}
OTHERS |= {"exchanged", "eap-stratified", "each-target", "opposites"}


def commands(file: Path) -> Iterator[list[str]]:
    """The words after ``gradpath`` of each command that has options with values: others are parts of sentences."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    for found in COMMAND.finditer(re.sub(r"\\\n\s*", " ", text)):
        command = found[1].strip()
        if file.suffix == ".py" and (re.search(r"[{}]|[\"']\)*[.,)]?$", command) or "(" in found[0] or ")" in command):
            continue  # a sentence of the program
        if " --" in command and "[--" not in command and " ..." not in command and command.count(" ") > 1:
            yield shlex.split(command)


def check(words: list[str]) -> None:
    """Refuse a command with an option, a method, a selection or a table that there is not."""
    context = click.Context(gradpath, info_name="gradpath")
    command = gradpath.get_command(context, words[0])
    assert command is not None
    typed = command.make_context(words[0], list(words[1:]), parent=context)
    values = {
        name: value
        for name, value in typed.params.items()
        if typed.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    Recipe(**{name: value for name, value in values.items() if name in {*Recipe.model_fields} - {"options"}})
    if "--plugin" in words:
        return
    lists = [("method", METHODS), ("methods", METHODS), ("how", SELECTIONS), ("selection", SELECTIONS)]
    for name, known in [*lists, ("tasks", TASKS), ("task", TASKS)]:
        for word in filter(None, str(values.get(name) or "").split(",")):
            one = word.partition("+")[0]
            assert one in known or one in OTHERS or Path(one).suffix or one.isupper(), f"{name} {one}"
    if words[0] == "reproduce":
        assert words[1] in {*ABOUT, "all", "NAME"} or words[1].startswith("-"), words[1]


def test_there_are_commands_to_check():
    assert sum(1 for file in FILES for _ in commands(file)) > 100
    with pytest.raises(click.NoSuchOption):
        check(["find", "--how", "top"])
    with pytest.raises(AssertionError, match="method eap-xy"):
        check(["find", "--method", "eap-xy"])


@pytest.mark.parametrize("file", [str(file.relative_to(ROOT)) for file in FILES if any(commands(file))])
def test_every_command_parses(file, monkeypatch):
    monkeypatch.setattr(registry, "load_plugin", lambda file: None)
    for words in commands(ROOT / file):
        try:
            check(words)
        except click.exceptions.Exit:  # --help and --version
            continue
        except Exception as problem:
            pytest.fail(f"gradpath {shlex.join(words)}: {getattr(problem, 'message', problem)}")


@pytest.mark.parametrize("file", [file.name for file in ROOT.glob("examples/*.yaml")])
def test_every_example_of_a_study_is_read(file):
    study = read_study(ROOT / "examples" / file)
    assert list(study.study.recipes(study.study.task_names[0], study.study.sizes or ()))
