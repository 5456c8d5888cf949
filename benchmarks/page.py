"""How quickly a report's page is loaded, and answers the slider, in headless Chromium.

Random scores of a graph of SmolLM2's shape (30 layers of 9 heads, 123,211 edges). The quickest of several
tries, in milliseconds of the browser's own clock:

- load: from the navigation to the page drawn;
- slider: from the event of the slider to the picture, which has the strongest edges while it moves;
- whole: from the event to the picture with all edges.

Needs ``chromium`` (or another one, named in ``$CHROMIUM``). Run it with ``make bench-page``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from gradpath.graph import Graph
from gradpath.recipe import Recipe
from gradpath.report import Chosen, MethodRun, Report, write
from gradpath.scores import Scores
from gradpath.study.outcome import commit

LAYERS, HEADS, SEED, TRIES = 30, 9, 0, 5
EDGES = (300, 3_000, 20_000)
SLIDER = """async (tries) => {
  const slider = document.getElementById("slider");
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const after = (ms) => new Promise((done) => setTimeout(done, ms));
  const times = [];
  for (let i = 0; i < tries; i++) {
    const start = performance.now();
    slider.value = Number(slider.value) - 1;
    slider.dispatchEvent(new Event("input"));
    await drawn();
    const quick = performance.now() - start;
    await after(141);
    await drawn();
    times.push([quick, performance.now() - start]);
  }
  return [0, 1].map((which) => Math.min(...times.map((pair) => pair[which])));
}"""


def report(edges: int) -> Report:
    graph = Graph(LAYERS, HEADS)
    noise = torch.Generator().manual_seed(SEED)
    weight = torch.randn(graph.n_sources + 1, generator=noise).mul(1.2).exp()
    weight[0] = weight[-1] = weight.max()
    values = weight[:-1, None] * weight[graph.node_of_target]
    values = values * torch.randn(values.shape, generator=noise) * graph.mask
    scores = Scores(graph, values, Recipe(model="random", task="none", steps=5))
    return Report("random scores", "random", "none", [MethodRun(scores)], Chosen(edges))


def times(browser: Any, edges: int) -> tuple[float, float, float]:
    """Milliseconds to load, to answer the slider, and to draw all of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        write(report(edges), file)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        loads = []
        for _ in range(TRIES):
            page.goto(file.as_uri())
            loads.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        page.evaluate("() => gradpath.set({ all: true })")  # a page draws its strongest edges until it is told to
        quick, whole = page.evaluate(SLIDER, TRIES)
        page.close()
    return min(loads), quick, whole


def main() -> None:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("there is no Chromium: apt-get install chromium, or name one in $CHROMIUM")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        print(f"commit {commit()}, Chromium {browser.version}, {LAYERS} layers of {HEADS} heads, seed {SEED}")
        print(f"{'edges':>8} {'load ms':>10} {'slider ms':>10} {'whole ms':>10}")
        for edges in EDGES:
            load, quick, whole = times(browser, edges)
            print(f"{edges:>8,} {load:>10.0f} {quick:>10.0f} {whole:>10.0f}")
        browser.close()


if __name__ == "__main__":
    main()
