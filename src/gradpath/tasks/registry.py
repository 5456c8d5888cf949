"""The built-in tasks by the name that users type."""

from __future__ import annotations

from gradpath.tasks import capital_country, gender_bias, greater_than, hypernymy, ioi, sva
from gradpath.tasks.kind import TaskKind

TASKS: dict[str, TaskKind] = {
    module.KIND.name: module.KIND
    for module in (ioi, sva, gender_bias, capital_country, hypernymy, greater_than)
}


def describe_tasks() -> list[dict[str, str]]:
    """Name, summary, metric and citation of every built-in task, for tables and JSON."""
    return [
        {"name": kind.name, "summary": kind.summary, "metric": kind.metric, "citation": kind.citation}
        for kind in TASKS.values()
    ]
