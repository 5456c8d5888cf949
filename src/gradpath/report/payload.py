"""What to cite for a method, as BibTeX.

A report's content as one JSON object for the page, small enough to send to a colleague.

Edges are stored as two columns: flat position in the (source, target) matrix (uint32) and score (float32),
both little-endian in base64, sorted by position. A model can have millions of edges, of which nobody will
look at more than the strongest some ten thousand. So at most ``LIMIT`` edges of every selection are kept: the
union of the first LIMIT of ``top``, of ``greedy`` and of ``signed``. No selection is changed by the cut: the
edge that is the largest of all at hand is also the largest of those of the file.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradpath._version import __version__
from gradpath.circuit import Circuit
from gradpath.errors import InputError, UsageError
from gradpath.report.data import IN_PAGE, SAVED, CurvePoint, Example, MethodRun, Report
from gradpath.scores import Scores
from gradpath.selection import SELECTIONS

_EAP = """@inproceedings{syed2024attribution,
  title = {Attribution Patching Outperforms Automated Circuit Discovery},
  author = {Syed, Aaquib and Rager, Can and Conmy, Arthur},
  booktitle = {Proceedings of the 7th BlackboxNLP Workshop},
  year = {2024},
  eprint = {2310.10348},
  archivePrefix = {arXiv}
}"""

_EAP_IG = """@inproceedings{hanna2024have,
  title = {Have Faith in Faithfulness: Going Beyond Circuit Overlap When Finding Model Mechanisms},
  author = {Hanna, Michael and Pezzelle, Sandro and Belinkov, Yonatan},
  booktitle = {First Conference on Language Modeling},
  year = {2024},
  eprint = {2403.17806},
  archivePrefix = {arXiv}
}"""

_EAP_GP = """@inproceedings{zhang2025eapgp,
  title = {{EAP-GP}: Mitigating Saturation Effect in Gradient-based Automated Circuit Identification},
  author = {Zhang, Lin and Dong, Wenshuo and Zhang, Zhuoran and Yang, Shu and Hu, Lijie and
            Liu, Ninghao and Zhou, Pan and Wang, Di},
  booktitle = {International Conference on Machine Learning},
  year = {2025}
}"""

_RELP = """@misc{jafari2025relp,
  title = {{RelP}: Faithful and Efficient Circuit Discovery in Language Models via Relevance Patching},
  author = {Jafari, Farnoush Rezaei and Eberle, Oliver and Khakzar, Ashkan and Nanda, Neel},
  year = {2025},
  eprint = {2508.21258},
  archivePrefix = {arXiv}
}"""

_ATP_STAR = """@misc{kramar2024atp,
  title = {{AtP*}: An efficient and scalable method for localizing {LLM} behaviour to components},
  author = {Kram{\\'a}r, J{\\'a}nos and Lieberum, Tom and Shah, Rohin and Nanda, Neel},
  year = {2024},
  eprint = {2403.00745},
  archivePrefix = {arXiv}
}"""

_SOFTWARE = """@software{gradpath,
  title = {gradpath: circuits in language models},
  version = {%s}
}"""

_BY_METHOD = {"eap": _EAP, "clean-corrupted": _EAP_IG, "eap-ig": _EAP_IG, "eap-gp": _EAP_GP}
_BY_METHOD |= {"eap-ig-activations": _EAP_IG, "relp": _RELP, "atp-star": _ATP_STAR}


def bibtex(methods: Iterable[str]) -> str:
    """The entries for some methods and for this library, each once."""
    entries = dict.fromkeys(_BY_METHOD[method] for method in methods if method in _BY_METHOD)
    return "\n\n".join([*entries, _SOFTWARE % __version__])


LIMIT = 30_000


def payload(report: Report, limit: int = LIMIT) -> dict[str, Any]:
    """The object that the page reads; ``limit`` is how far its slider goes, at least."""
    _check(report)
    graph = report.runs[0].graph
    limit = min(graph.n_edges, max(limit, report.chosen.edges))
    return {
        "version": __version__,
        "title": report.title,
        "model": report.model,
        "task": report.task,
        "graph": {"n_layers": graph.n_layers, "n_heads": graph.n_heads, "parallel": graph.parallel},
        "edges_total": graph.n_edges,
        "runs": [_run(run, limit) for run in report.runs],
        "chosen": {
            "edges": report.chosen.edges,
            "asked": _asked(report),
            "how": report.chosen.how,
            "run": report.chosen.run,
            "pruned": report.chosen.pruned,
        },
        "examples": [_example(example) for example in report.examples],
        "about": plain(report.about),
        "command": report.command,
        "bibtex": bibtex(str(run.about.get("method", "")) for run in report.runs),
    }


def _asked(report: Report) -> int:
    """How many edges were asked for, before pruning."""
    found = report.runs[report.chosen.run].found
    return found.asked if found is not None and report.chosen.how == SAVED else report.chosen.edges


def _check(report: Report) -> None:
    if not report.runs:
        raise UsageError("a report needs at least one method that was run: got none.")
    for run in report.runs:
        if run.graph != report.runs[0].graph:
            raise InputError(
                "the methods of one report must have run on the same model: "
                f"got {report.runs[0].graph} and {run.graph}. Make one report for each."
            )
        for scored in (run.scores, run.found):
            _check_finite(run, scored)
    chosen = report.chosen
    if not 0 <= chosen.run < len(report.runs):
        raise UsageError(f"run {chosen.run} was chosen, but the report has {len(report.runs)} runs.")
    known = report.runs[chosen.run].selections
    if chosen.how not in known:
        raise UsageError(
            f"the page cannot select by {chosen.how!r} here, only by {', '.join(known)}. "
            f"Give the circuit as the run's 'found' and choose {SAVED!r}."
        )


def _check_finite(run: MethodRun, scored: Scores | Circuit | None) -> None:
    values = scored.values if isinstance(scored, Scores) else None if scored is None else scored.scores
    if values is not None and not values.isfinite().all():
        bad = int((~values.isfinite()).sum())
        raise InputError(
            f"{bad:,} scores of {run.label} are not finite numbers, so they cannot be ranked or drawn. "
            "Attribute again in float32, or leave out examples with extreme logits."
        )


def _run(run: MethodRun, limit: int) -> dict[str, Any]:
    flat, scores, limit = _edges(run, limit)
    columns: dict[str, Any] = {"index": packed(flat.numpy(), "<u4"), "scores": packed(scores.numpy(), "<f4")}
    if run.found is not None:
        columns["saved"] = {
            "order": packed(torch.searchsorted(flat, flat_index(run.found)).numpy(), "<u4"),
            "edges": len(run.found),
            "asked": run.found.asked,
            "how": str(run.found.about.get("selection", {}).get("how", SAVED)),
        }
    return {
        "name": run.label,
        "about": plain(run.about),
        "selections": list(run.selections),
        "limit": limit,
        "edges": len(flat),
        **columns,
        "curve": [_point(point) for point in run.curve],
        "areas": {how: asdict(areas) for how, areas in run.areas.items()},
    }


def _edges(run: MethodRun, limit: int) -> tuple[Tensor, Tensor, int]:
    """The flat positions of the run's edges, ascending, their scores, and how many can be asked for."""
    found = None if run.found is None else flat_index(run.found)
    if run.scores is None:
        assert run.found is not None
        assert found is not None
        order = found.argsort()
        return found[order], run.found.scores.cpu().float()[order], len(found)
    scores = Scores(run.scores.graph, run.scores.values.detach().cpu().float())
    parts = [SELECTIONS[how].order(scores, limit) for how in IN_PAGE]
    flat = torch.unique(torch.cat(parts if found is None else [*parts, found]))
    return flat, scores.values.flatten()[flat], limit


def flat_index(circuit: Circuit) -> Tensor:
    """Where a circuit's edges stand in the flattened (source, target) matrix, (edge,)."""
    return circuit.index[:, 0].cpu() * circuit.graph.n_targets + circuit.index[:, 1].cpu()


def packed(values: np.ndarray[Any, Any], dtype: str) -> str:
    return base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")


def _point(point: CurvePoint) -> dict[str, Any]:
    return {
        "how": point.how,
        "asked": point.edges_asked,
        "kept": point.edges_kept,
        "faithfulness": plain(point.faithfulness),
        "low": plain(point.low),
        "high": plain(point.high),
        "error": plain(point.error),
    }


def _example(example: Example) -> dict[str, Any]:
    return {
        "clean_tokens": list(example.clean_tokens),
        "corrupted_tokens": list(example.corrupted_tokens),
        "answer": example.answer,
        "clean": plain(example.clean),
        "corrupted": plain(example.corrupted),
        "circuit": plain(example.circuit),
    }


def plain(value: Any) -> Any:
    """A value as strict JSON can hold it: no NaN, no object but by its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)
