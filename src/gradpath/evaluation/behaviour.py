"""Does the model do the task? Before a circuit can be faithful to a behaviour, the model has to show it.

Two numbers answer this: how often the right answer is ahead of the wrong one on the clean prompts, and how much higher
the metric is on the clean prompts than on the corrupted ones. A model at chance has a small and noisy difference, by
which faithfulness is divided: any circuit then keeps any share of it.
"""

from __future__ import annotations

from typing import Literal

RARELY, MOSTLY = 0.5, 0.75  # shares of examples with the right answer ahead: at most, the model guesses; below, it errs
NOT_DONE = "the model does not do this task: faithfulness means nothing here"
UNCLEAR = "it is unclear whether the model does this task"
Done = Literal["yes", "unclear", "no"]


def does_task(gain: float, interval: tuple[float, float] | None, accuracy: float | None) -> Done:
    """Whether the model does a task.

    Args:
        gain: The mean metric on the clean prompts minus that on the corrupted ones.
        interval: Its 95% interval; None if there are too few examples.
        accuracy: The share of examples with the right answer ahead; None if the metric has no right answer.

    Returns:
        "no" if the gain may be zero or the right answer is not ahead on more than half of the examples, "unclear" if it
        is ahead on less than three quarters or there are too few examples, and "yes" otherwise.
    """
    least = gain if interval is None else interval[0]
    if least <= 0 or (accuracy is not None and accuracy <= RARELY):
        return "no"
    if interval is None or (accuracy is not None and accuracy < MOSTLY):
        return "unclear"
    return "yes"


def behaviour_line(done: Done, gain_interval: tuple[float, float] | None, accuracy: float | None, n: int) -> str:
    """Both numbers and, unless the model clearly does the task, what follows from them, in one line."""
    ahead = "" if accuracy is None else f"right answer ahead on {accuracy:.0%} of the examples; "
    gain = f"clean - corrupted {interval_text(gain_interval, n, '.3f')}"
    return ahead + gain + {"yes": "", "unclear": f"; {UNCLEAR}", "no": f"; {NOT_DONE}"}[done]


def interval_text(interval: tuple[float, float] | None, n: int, form: str) -> str:
    """``95% interval 0.68 to 0.92``, or that n examples are too few for one."""
    if interval is None:
        return f"{n} example{'' if n == 1 else 's'}: no interval"
    low, high = interval
    return f"95% interval {low:{form}} to {high:{form}}"
