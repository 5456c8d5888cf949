"""A person at the page: opens it, moves the slider, looks at what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradpath.report import Report, render

LIMIT = 300_000  # milliseconds: a page that hangs fails


class Visit:
    """Opens pages in one browser and remembers what went wrong and what was asked of the network."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.contexts: list[Any] = []

    def open(self, report: Report | str, *, width: int = 1440, theme: str = "light") -> Any:
        """The page of a report (or of a file's text), ready to be used."""
        file = self.folder / f"report{len(self.contexts)}.html"
        file.write_text(report if isinstance(report, str) else render(report), encoding="utf-8")
        size = {"width": width, "height": 900}
        context = self.browser.new_context(viewport=size, color_scheme=theme, accept_downloads=True)
        context.set_default_timeout(LIMIT)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.goto(file.as_uri())
        return page

    def close(self) -> None:
        for context in self.contexts:
            context.close()


def number(page: Any, name: str) -> int:
    """A number that the page shows."""
    return int(page.inner_text(f"#{name}").replace(",", ""))


def ask(page: Any, *, edges: int | None = None, how: str | None = None, prune: bool | None = None) -> None:
    """Set the controls as a person does."""
    if how is not None:
        page.locator(f"#hows input[value={how}]").check(force=True)
    if prune is not None:
        page.set_checked("#prune", prune)
    if edges is not None:
        page.fill("#count", str(edges))
        page.locator("#count").blur()


def edges_at(page: Any, *, edges: int, how: str, prune: bool) -> list[str]:
    """As ``ask`` and ``edges_shown``, through the same controls, in one call: for many settings in a row."""
    script = """([n, how, prune]) => {
      const radio = document.querySelector(`#hows input[value=${how}]`);
      if (!radio.checked) radio.click();
      const [box, count] = ["prune", "count"].map((id) => document.getElementById(id));
      if (box.checked !== prune) box.click();
      count.value = n;
      count.dispatchEvent(new Event("input"));
      return gradpath.edges(); }"""
    shown: list[str] = page.evaluate(script, [edges, how, prune])
    return shown


def edges_shown(page: Any) -> list[str]:
    edges: list[str] = page.evaluate("gradpath.edges()")
    return edges


def still(page: Any) -> None:
    """Until all that is going to be drawn is drawn.

    The page draws in the next frame, and what it leaves out while something moves 140 ms later. What is asked
    for here comes after both in the page's own order, however slow the machine is.
    """
    page.evaluate("""() => new Promise((done) => requestAnimationFrame(() => setTimeout(() =>
      requestAnimationFrame(() => setTimeout(done)), 200)))""")


def ink(page: Any) -> int:
    """How many pixels of the drawing are not empty, once it is still."""
    still(page)
    script = """() => { const c = document.getElementById("canvas");
      const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i] > 24) n++; return n; }"""
    return int(page.evaluate(script))
