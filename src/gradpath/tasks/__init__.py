"""Tasks: pairs of clean and corrupted prompts, their answers, and the metric that judges them."""

from gradpath.tasks.builtin import TASKS, describe_tasks, named_task
from gradpath.tasks.load import load_task
from gradpath.tasks.metrics import METRICS, find_metric, kl_divergence, logit_difference, metric, probability_difference
from gradpath.tasks.task import Pairs, Task, encode, judged_by_kl

__all__ = [
    "METRICS",
    "TASKS",
    "Pairs",
    "Task",
    "describe_tasks",
    "encode",
    "find_metric",
    "judged_by_kl",
    "kl_divergence",
    "load_task",
    "logit_difference",
    "metric",
    "named_task",
    "probability_difference",
]
