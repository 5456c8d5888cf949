"""``gradpath check``: compare what is computed for a model with transformers and with a slow reference."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from gradpath import defaults
from gradpath.cli import options as opt
from gradpath.cli.progress import Screen


@click.command(name="check")
@opt.model_option
@click.option(
    "--task", default=defaults.TASK, show_default=True, help="The task to take prompts from (gradpath ls tasks)."
)
@click.option("--examples", type=click.IntRange(min=1), default=2, show_default=True, help="How many pairs of prompts.")
@opt.plugin_option
@opt.json_option
@opt.load_options
def command(task: str, examples: int, as_json: bool, **given: Any) -> None:
    """Check a model's logits, scores and circuits against transformers and a plain, slow reference.

    \b
    gradpath check --model smollm2
    gradpath check --model ./my-model --dtype bfloat16
    """
    from gradpath.model.load import load_original
    from gradpath.selfcheck import checks
    from gradpath.tasks import load_task
    from gradpath.tasks.load import check_task

    check_task(task)
    loading, screen = opt.pick(opt.ModelOptions, given), Screen()
    model, loaded = loading.model, loading.load()
    prompts = load_task(task, loaded, n=examples)
    with screen.waiting("loading it with transformers"):
        original = load_original(model, loaded.dtype, trust_remote_code=loading.trust_remote_code)
    done = []
    with screen.waiting("checking"):
        for check in checks(loaded, prompts, original):
            done.append(check)
            if not as_json:
                sign = "ok    " if check.passed else "WRONG "
                click.echo(f"{sign} {check.what}: off by {check.off:.1e}, may be {check.limit:.0e}")
    passed = all(check.passed for check in done)
    if as_json:
        rows = [{**vars(check), "passed": check.passed} for check in done]
        summary = {"model": model, "dtype": str(loaded.dtype), "passed": passed, "checks": rows}
        click.echo(json.dumps(summary, indent=1))
    elif passed:
        click.echo(f"{model} is computed as it should be.")
    else:
        click.echo(f"{model} is NOT computed as it should be: do not use its scores, and please report this.")
    sys.exit(0 if passed else 1)
