"""Runs the command line and scripts in forked processes, so that the libraries are imported once for all of them.

One JSON object a line on stdin, one on stdout: ``{"start": [arguments], "out": file, "err": file}`` gives the
process's id, ``{"wait": id}`` its exit code (negative for the signal that killed it), ``{"ended": id}``
whether it has one. With ``"script"``, a module or a file runs in place of the command line. With ``"hold"``,
patterns, and ``"files"``, a number, a process stops at the first file that it opens once so many files match, and
makes the folder ``err.held-id``.
"""

from __future__ import annotations

import glob
import json
import os
import runpy
import signal
import sys
import time

import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.figure  # noqa: F401 (what the commands import late, here once for all)
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel  # noqa: F401

from gradpath import cli

torch.set_num_threads(1)
LIMIT = 600  # seconds, after which nobody is there any more who would send a signal


def hold_at(patterns: list[str], files: int, told: str) -> None:
    """Wait for a signal from the first file on that is opened once so many match the patterns.

    So a run cannot end before the signal comes, however quick or slow the machine is. What it opens on its
    way out does not hold it again.
    """
    done = False

    def hold(event: str, _: object) -> None:
        nonlocal done
        if event == "open" and not done and sum(len(glob.glob(pattern)) for pattern in patterns) >= files:
            done = True
            os.mkdir(told)
            end = time.monotonic() + LIMIT
            while time.monotonic() < end:  # a signal that comes just before a sleep does not end that sleep
                time.sleep(0.01)
            os._exit(98)

    sys.addaudithook(hold)


def start(arguments: list[str], out: str, err: str, script: str, most: int | None, hold: list[str], files: int) -> int:
    child = os.fork()
    if child:
        return child
    for number, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started us may have ignored it
    if hold:
        hold_at(hold, files, f"{err}.held-{os.getpid()}")
    if most is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        if script:
            sys.argv = [script, *arguments]
            (runpy.run_path if script.endswith(".py") else runpy.run_module)(script, run_name="__main__")
        else:
            cli.main(arguments)
    except SystemExit as leave:
        sys.stdout.flush()
        os._exit(int(leave.code or 0))
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(99)


for line in sys.stdin:
    asked = json.loads(line)
    if "start" in asked:
        answer = start(asked.pop("start"), **asked)
    elif "ended" in asked:
        found = os.waitid(os.P_PID, asked["ended"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
        answer = int(found is not None)
    else:
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
