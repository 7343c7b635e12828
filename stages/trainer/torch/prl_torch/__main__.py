"""Answers a trainer's requests, one after the other, until the pipe ends.

Requests come on file descriptor 3, answers go to 4 (wire.py). A request that fails is answered with what failed, and ends
the process: who asked starts another.

    open         folder, loss, optimizer, schema   → parameters, torch, transformers
    micro_batch  entropy_coef, rl_tokens, ce_tokens, ref_kl_tokens; body: the record in Avro's binary encoding → figures
    update       lr                                → applied, figures (grad_norm)
    weights                                        → body: safetensors
    load         body: safetensors                 →
    checkpoint                                     → body: safetensors
    restore      body: safetensors                 →

Figures are strings, since JSON has no NaN.
"""

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any, BinaryIO

import fastavro
import torch
import transformers

from . import wire
from .batch import MicroBatch
from .learner import Learner, Optimizer, out_of_memory
from .loss import Settings, Step

REQUESTS, ANSWERS = 3, 4


class Worker:
    def __init__(self) -> None:
        self.learner: Learner | None = None
        self.schema: Any = None

    def answer(self, op: str, args: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if op == "open":
            self.schema = fastavro.parse_schema(json.loads(args["schema"]))
            self.learner = Learner(args["folder"], Settings(**args["loss"]), Optimizer(**args["optimizer"]))
            count = sum(p.numel() for p in self.learner.params.values())
            return {"parameters": count, "torch": torch.__version__, "transformers": transformers.__version__}, b""
        if self.learner is None:
            raise ValueError(f"{op} before open")
        match op:
            case "micro_batch":
                figures = self.learner.accumulate(MicroBatch.decode(self.schema, body), Step(**args))
                return {"figures": {name: repr(v) for name, v in figures.items()}}, b""
            case "update":
                applied, norm = self.learner.update(**args)
                return {"applied": applied, "figures": {"grad_norm": repr(norm)}}, b""
            case "weights":
                return {}, self.learner.weights()
            case "load":
                self.learner.load(body)
                return {}, b""
            case "checkpoint":
                return {}, self.learner.checkpoint()
            case "restore":
                self.learner.restore(body)
                return {}, b""
        raise ValueError(f"request {op!r} is not one that this worker knows")


def receive(pipe: BinaryIO, requests: queue.SimpleQueue) -> None:
    """Takes requests while earlier ones are being answered. When the trainer is gone, so is the process."""
    try:
        while (request := wire.read(pipe)) is not None:
            requests.put(request)
    except Exception:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    requests: queue.SimpleQueue = queue.SimpleQueue()
    answers = os.fdopen(ANSWERS, "wb")
    threading.Thread(target=receive, args=(os.fdopen(REQUESTS, "rb"), requests), daemon=True).start()
    worker = Worker()
    while True:
        args, body = requests.get()
        try:
            head, data = worker.answer(args.pop("op"), args, body)
        except Exception as error:
            traceback.print_exc()
            sys.stderr.flush()
            wire.write(answers, {"error": f"{type(error).__name__}: {error}", "out_of_memory": out_of_memory(error)})
            sys.exit(1)
        wire.write(answers, head, data)


main()
