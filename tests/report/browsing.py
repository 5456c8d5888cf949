"""A person at the page: opens it, moves the slider, looks at what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradpath.report import Report, render

LIMIT = 300_000  # milliseconds: a page that hangs fails


class Windows:
    """Pages of one browser that tests use one after another: a new one costs more than what most of them do."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.free: dict[tuple[int, str], list[Any]] = {}
        self.problems: list[str] = []
        self.requests: list[str] = []

    def new(self, width: int, theme: str) -> Any:
        size = {"width": width, "height": 900}
        page = self.browser.new_page(viewport=size, color_scheme=theme, accept_downloads=True)
        page.set_default_timeout(LIMIT)
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        return page

    def take(self, width: int, theme: str) -> Any:
        free = self.free.setdefault((width, theme), [])
        return free.pop() if free else self.new(width, theme)


class Visit:
    """Opens reports, and gives the pages back."""

    def __init__(self, windows: Windows, folder: Path) -> None:
        self.windows, self.folder, self.files = windows, folder, 0
        self.taken: list[tuple[tuple[int, str], Any]] = []
        windows.problems.clear()
        windows.requests.clear()

    def open(
        self, report: Report | str, *, width: int = 1440, theme: str = "light", address: str = "", script: str = ""
    ) -> Any:
        """The page of a report (or of a file's text), ready to be used.

        Its address ends with ``address``, and ``script`` runs before its own.
        """
        file = self.folder / f"report{self.files}.html"
        self.files += 1
        file.write_text(report if isinstance(report, str) else render(report), encoding="utf-8")
        if script:  # it stays with the page: nobody else gets that one
            page = self.windows.new(width, theme)
            page.add_init_script(script)
        else:
            page = self.windows.take(width, theme)
            self.taken.append(((width, theme), page))
        page.mouse.move(0, 0)
        page.goto(file.as_uri() + address)
        # The page lays itself out again when it first learns its size, which is before the second frame.
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page

    def close(self) -> None:
        for kind, page in self.taken:
            self.windows.free[kind].append(page)


def pick(page: Any, name: str) -> None:
    """Select a node or an edge by the search box."""
    page.fill("#search", name)
    page.press("#search", "Enter")


def click_on(page: Any, node: str) -> None:
    """Click a node in the drawing."""
    x, y = page.evaluate(f"gradpath.where('{node}')")
    page.click("#canvas", position={"x": x, "y": y})


def saved(page: Any, button: str, folder: Path) -> Path:
    """The file that a button saves."""
    with page.expect_download() as download:
        page.click(button)
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


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
