"""Runs sources that arrive on standard input, each in a fork of its own; see `support.Fresh`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback

import jax  # noqa: F401

import jaxmarshal  # noqa: F401


def child(job: dict, answers: int) -> None:
    """Run one job, send the JSON of what it assigned to `result`, and end the process."""
    status = 1
    try:
        scope = dict(job["values"])
        exec(compile(job["source"], "<fresh process>", "exec"), scope)
        with os.fdopen(answers, "w") as pipe:
            json.dump(scope.get("result"), pipe, default=str)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(job: dict) -> dict:
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        process = os.fork()
        if process == 0:
            os.close(reading)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            child(job, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        status = os.waitpid(process, 0)[1]
        output.seek(0)
        return {
            "status": status,
            "output": output.read().decode(errors="replace"),
            "result": json.loads(text) if text else None,
        }


for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), flush=True)
