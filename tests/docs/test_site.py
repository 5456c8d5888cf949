"""The documentation as a site: built with warnings as errors, complete, and asking no other host."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import gradpath
from gradpath.cli import VERBS
from gradpath.cli import gradpath as command_line

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def text(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_document_is_a_page(site):
    documents = {file.relative_to(ROOT / "docs").with_suffix(".html") for file in ROOT.glob("docs/**/*.md")}
    indexed = {file.with_name("index.html") if file.stem == "README" else file for file in documents}
    assert {file for file in indexed if not (site / file).is_file()} == set()
    assert (site / "CONTRIBUTING.html").is_file()
    assert (site / "CHANGELOG.html").is_file()


def test_the_command_line_reference_has_every_option(site):
    page = text(site / "cli.html")
    context = click.Context(command_line, info_name="gradpath")
    for verb in VERBS:
        assert f"gradpath {verb}" in page
        command = command_line.get_command(context, verb)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                assert max(option.opts, key=len) in page


def test_the_python_reference_has_every_public_name_with_its_words(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in gradpath.__all__:
        assert f'id="gradpath.{name}"' in page, f"docs/api.md lacks ::: gradpath.{name}"
    assert "Score every edge of the model on the task." in page
    assert "&gt;&gt;&gt; " in page, "examples in docstrings have to be code"


def test_equations_are_drawn_by_the_browser_alone(site):
    page = (site / "concepts.html").read_text(encoding="utf-8")
    assert page.count("<math") > 20
    assert "arithmatex" not in page
    assert not re.search(r"<m[io]>\\", page), "a command that the converter does not know"


def test_pages_ask_no_other_host(site):
    loads = re.compile(r'<(?:script|img|iframe|link rel="(?:stylesheet|preconnect)")[^>]*?(?:src|href)="(http[^"]+)"')
    asked = {url for page in site.rglob("*.html") for url in loads.findall(page.read_text(encoding="utf-8"))}
    assert asked == set()


@pytest.mark.slow
def test_pages_opened_as_files_can_be_searched_and_ask_no_other_host(site: Path, chromium: Any):
    page = chromium.new_page()
    asked, problems = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.goto((site / "concepts.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("bootstrap")
    page.wait_for_selector(".md-search-result__link", timeout=300_000)
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert problems == []
