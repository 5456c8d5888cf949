"""What no file of docs/ holds: MathML, the command line's reference, the list of results, files outside.

``mkdocs`` calls these functions while it builds (see ``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from gradpath.cli import VERBS, gradpath

ROOT = Path(__file__).parents[2]
# Files of the repository that pages link to, or that are pages themselves; on the site they keep their names.
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md", "benchmarks/growth.png", "benchmarks/load.png")
COMMANDS = "<!-- commands -->"
# The one script that the theme's offline plugin takes from another host, and ours in its place.
FOREIGN, OURS = "https://unpkg.com/iframe-worker/shim", "site/worker.js"
_FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the place of the results with the pages that are there."""
    for section in config.nav or []:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                if entry.get("Results") == "results/":
                    entry["Results"] = _results(Path(config.docs_dir))
    return config


def _results(docs: Path) -> list[dict[str, Any]]:
    """The summary, then each folder's pages, and what was tried and lost."""
    results = docs / "results"
    folders = sorted(folder for folder in results.iterdir() if folder.is_dir() and _pages(folder))
    pages = [{folder.name: [_entry(docs, folder, page) for page in _pages(folder)]} for folder in folders]
    return [{"Summary": "results/README.md"}, *pages, {"Tried": "results/tried.md"}]


def _entry(docs: Path, model: Path, page: Path) -> Any:
    """A page under its own title, or, in a folder below the model's, under the folder's name."""
    place, below = str(page.relative_to(docs)), page.parent.relative_to(model)
    return place if below == Path() else {f"{page.stem.capitalize()}: {below}": place}


def _pages(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.md"), key=lambda page: (page.name != "README.md", len(page.parts), page))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take along what lies outside of docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where files are on the site, and write the reference of the command line."""
    if page.file.src_uri in OUTSIDE:
        markdown = re.sub(r"\]\((?:\.\./)?docs/", "](" + "../" * page.file.src_uri.count("/"), markdown)
    elif "/" not in page.file.src_uri:
        markdown = markdown.replace("](../", "](")
    return markdown.replace(COMMANDS, "\n".join(_reference())) if COMMANDS in markdown else markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """LaTeX as MathML, which browsers draw themselves: no script, no fonts to fetch. Source code is shown opened."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(html.unescape(found["latex"]).strip(), display=display)

    content = content.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" open>')
    return _FORMULA.sub(drawn, content)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let no page ask another host for anything."""
    return output.replace(FOREIGN, get_relative_url(OURS, page.url))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    return output.replace(FOREIGN, f"/{OURS}")  # the page for what is not there, which may be shown anywhere


def _reference() -> Iterator[str]:
    """Every verb: what it does, examples, arguments and options, as the parser has them."""
    for name in VERBS:
        context = click.Context(gradpath, info_name="gradpath")
        command = gradpath.get_command(context, name)
        assert command is not None
        yield f"## gradpath {name}\n"
        usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=name)))
        yield f"```text\ngradpath {name} {usage}\n```\n"
        for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
            lines = paragraph.strip().splitlines()
            # click keeps the lines of a paragraph that begins with a backspace as they are
            yield "```text\n" + "\n".join(lines[1:]) + "\n```\n" if lines[0] == "\b" else paragraph + "\n"
        yield from _options(command)


def _options(command: click.Command) -> Iterator[str]:
    yield "| option | | default |\n|---|---|---|"
    context = click.Context(command, info_name=command.name)
    for option in command.params:
        if isinstance(option, click.Option) and (record := option.get_help_record(context)):
            # A default that is more than a value is said in words, in brackets at the end of the help.
            about, told = re.fullmatch(r"(.*?)(?:\s+\[(.*)\])?", option.help or "").groups()  # type: ignore[union-attr]
            names = record[0].replace("|", "\N{BOX DRAWINGS LIGHT VERTICAL}")  # a plain one would end the cell
            yield f"| `{names}` | {about} | {told or _shown(option.default)} |"
    yield ""


def _shown(default: Any) -> str:
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    return f"`{default}`" if plain and default != "" else ""
