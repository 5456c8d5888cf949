"""MIB's submission: a folder per task and model, with importances of all edges or with nine circuits.

    SUBMISSION/ioi_gpt2/importances.json       the scores of all edges: MIB ranks by them
    SUBMISSION/ioi_gpt2/circuit_0.1.json ...   or circuits with at most 0.1, 0.2, 0.5, 1, 2, 5, 10, 20 and 50% of them

Both are JSON of the EAP-IG library (``eap_ig``). The leaderboard takes submissions of at least two tasks and two
models: convert into the same folder several times, then push it to the hub.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradpath.circuit import Circuit
from gradpath.errors import InputError, warn
from gradpath.evaluation.mib import FRACTIONS, edges_at
from gradpath.formats.content import Content
from gradpath.formats.eap_ig import eap_ig_text
from gradpath.graph import Graph
from gradpath.runtime.files import write_atomically, write_together
from gradpath.scores import Provenance

TASKS = ("ioi", "mcqa", "arithmetic-addition", "arithmetic-subtraction", "arc-easy", "arc-challenge")
MODELS = {
    "gpt2": "gpt2",
    "openai-community/gpt2": "gpt2",
    "Qwen/Qwen2.5-0.5B": "qwen2.5",
    "google/gemma-2-2b": "gemma2",
    "meta-llama/Llama-3.1-8B": "llama3",
}


def write_importances(content: Content, folder: Path, d_model: int | None) -> None:
    """Write the scores of all edges into the folder of their task and model."""
    scores = content.need_scores()
    place = folder / folder_name(scores.provenance)
    write_atomically(place / "importances.json", eap_ig_text(Content(scores), d_model))


def sizes(graph: Graph) -> list[int]:
    """The numbers of edges of the nine circuits."""
    return [edges_at(graph, fraction) for fraction in FRACTIONS[:-1]]


def write_circuits(circuits: Sequence[Circuit], folder: Path, d_model: int | None) -> None:
    """Write nine circuits, of ``sizes``, into the folder of their task and model: all or none."""
    with write_together(folder / folder_name(circuits[0].provenance)) as draft:
        for fraction, circuit in zip(FRACTIONS[:-1], circuits, strict=True):
            write_atomically(draft / f"circuit_{100 * fraction:g}.json", eap_ig_text(Content(circuit=circuit), d_model))


def folder_name(made: Provenance) -> str:
    """MIB's name for a task and a model, such as ``arc-easy_llama3``."""
    if not made.task or not made.model:
        raise InputError(
            "a submission to MIB is filed by task and model, which this file does not record. Give one that find wrote."
        )
    task, model = made.task.replace("_", "-"), MODELS.get(made.model)
    if task not in TASKS or model is None:
        warn(
            f"MIB's leaderboard has no {task} in {made.model}: its tasks are {', '.join(TASKS)}, its models "
            f"{', '.join(dict.fromkeys(MODELS.values()))}. The file is written, and can be evaluated with MIB's code."
        )
    model = model or made.model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]", "-", f"{task}_{model}")
