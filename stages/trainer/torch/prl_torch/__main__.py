"""Answers a trainer's requests until the pipe ends.

Requests come on file descriptor 3, answers go to 4 (wire.py). A request has an id, and its answer the same; answers may come
in another order, since three threads give them: the one that receives decodes micro-batches, another writes files, and the
rest is done one after the other. A request that fails is answered with what failed, and ends the process: who asked starts
another.

    join        rank, world_size, rendezvous, timeout, device
                                                   waits for the other ranks, as everything does from then on for timeout
                                                   seconds; one that is alone does not ask
    open        folder, schema, loss, optimizer, options
                                                   → parameters, vocabulary, positions, torch, transformers
    agree       name, value                        → value, as rank 0 has it
    prepare     step, index; body: the record in Avro's binary encoding
    accumulate  step, index, entropy_coef, rl_tokens, ce_tokens, ref_kl_tokens
    update      lr                                 → applied, figures: sums over the step's micro-batches on all ranks, grad_norm,
                                                     work_tokens, flops, flops_per_second; memory of this rank, in bytes
    snapshot    weights, checkpoint                copies either or both: the weights, the optimizer's state
    save        what, path                         writes what was copied last: weights or checkpoint
    load        weights, checkpoint                paths of such files; an empty one is none

All ranks make the same requests, but for prepare and save. Figures are strings, since JSON has no NaN.
"""

import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

import fastavro
import torch
import torch.distributed
import transformers

from . import parallel, wire
from .batch import MicroBatch
from .learner import Learner, out_of_memory
from .loss import Settings, Step
from .options import Optimizer, Options

REQUESTS, ANSWERS = 3, 4

# The figures of a micro-batch, and what an update says of the work (Learner.report).
FIGURES = (
    "tokens", "sampled", "nll", "entropy",
    "rl_tokens", "rl_loss", "ratio", "mismatch_kl", "masked_kl", "masked_high", "masked_low",
    "ce_tokens", "ce_loss", "ce_nll", "ref_kl_tokens", "ref_kl_loss", "teacher_kl",
)  # fmt: skip


class Worker:
    def __init__(self) -> None:
        self.learner: Learner | None = None
        self.group = parallel.Group()
        self.schema: Any = None
        self.pin: torch.device | None = None  # the GPU that micro-batches are for
        self.prepared: dict[tuple[int, int], MicroBatch] = {}  # by step and index
        self.figures = dict.fromkeys(FIGURES, 0.0)  # of the step
        self.copies: dict[str, Any] = {}  # by what they are of: what writes them

    def prepare(self, args: dict[str, Any], body: bytes) -> dict[str, Any]:
        """May be called while any other method works."""
        self.prepared[args["step"], args["index"]] = MicroBatch.decode(self.schema, body, pin=self.pin)
        return {}

    def save(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        """May be called while any other method works but snapshot."""
        self.copies.pop(args["what"])(args["path"])
        return {}

    def open(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        self.schema = fastavro.parse_schema(json.loads(args["schema"]))
        options = Options(**args["options"])
        device = options.place(self.group.rank)
        self.pin = device if device.type == "cuda" else None
        self.learner = Learner(args["folder"], Settings(**args["loss"]), Optimizer(**args["optimizer"]), options, self.group)
        config = self.learner.policy.model.config.get_text_config()
        return {
            "parameters": sum(p.numel() for p in self.learner.params.values()),
            "vocabulary": config.vocab_size,
            "positions": getattr(config, "max_position_embeddings", None) or 0,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def join(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        device = Options(device=args["device"]).place(args["rank"])
        if args["rank"] > 0:
            await_rank_0(args["rendezvous"], args["timeout"] / 2)
        self.group = parallel.join(args["rank"], args["world_size"], args["rendezvous"], args["timeout"], device)
        return {}

    def agree(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        return {"value": self.group.agree(args["name"], args["value"])}

    def accumulate(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        batch = self.prepared.pop((args.pop("step"), args.pop("index")))
        for name, value in self.learner.accumulate(batch, Step(**args)).items():
            self.figures[name] += value
        return {}

    def update(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        applied, norm = self.learner.update(args["lr"])
        work, group = self.learner.report(), self.group
        sums = {**self.figures, "work_tokens": work["tokens"], "flops": work["flops"], "flops_per_second": work["flops_per_second"]}
        total = group.total(torch.tensor(list(sums.values()), dtype=torch.float64, device=self.learner.device)).tolist()
        figures = dict(zip(sums, total)) | {"grad_norm": norm, "memory": work["memory"]}
        self.figures = dict.fromkeys(FIGURES, 0.0)
        return {"applied": applied, "figures": {name: repr(float(v)) for name, v in figures.items()}}

    def snapshot(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        self.copies = {what: self.learner.snapshot(what) for what in ("weights", "checkpoint") if args[what]}
        return {}

    def load(self, args: dict[str, Any], _: bytes) -> dict[str, Any]:
        if args["weights"]:
            self.learner.load(args["weights"])
        if args["checkpoint"]:
            self.learner.restore(args["checkpoint"])
        return {}


def await_rank_0(rendezvous: str, timeout: float) -> None:
    """Waits until somebody listens at rendezvous: what joins does not keep to its own limit where nobody does."""
    host, _, port = rendezvous.rpartition(":")
    limit = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
            return
        except OSError as error:
            if time.monotonic() > limit:
                raise ConnectionError(f"rank 0 does not listen at {rendezvous}: {error}") from error
        time.sleep(0.2)


def lost_peer(error: BaseException) -> bool:
    """Whether an error says that another rank is gone or does not come. Gloo's have no type of their own."""
    told = ("closed by peer", "reset by peer", "Broken pipe", "gloo", "Timed out", "timed out", "NCCL")
    return isinstance(error, (torch.distributed.DistError, ConnectionError)) or isinstance(error, RuntimeError) and any(t in str(error) for t in told)


class Answers:
    """The pipe to the trainer, which any thread may write to."""

    def __init__(self, pipe: BinaryIO):
        self.pipe, self.lock = pipe, threading.Lock()

    def give(self, answer, request: tuple[dict[str, Any], bytes]) -> None:
        """Answers a request with what answer makes of it; where that fails the process ends."""
        args, body = request
        name = {"id": args.pop("id")}
        try:
            head = answer(args, body)
        except BaseException as error:
            with self.lock:
                try:
                    traceback.print_exc()
                    sys.stderr.flush()
                    wire.write(self.pipe, name | {"error": f"{type(error).__name__}: {error}", "out_of_memory": out_of_memory(error), "peer_lost": lost_peer(error)})
                finally:  # also where nobody reads what it says
                    os._exit(1)
        with self.lock:
            wire.write(self.pipe, name | head)


def receive(pipe: BinaryIO, worker: Worker, answers: Answers, saves: queue.SimpleQueue, requests: queue.SimpleQueue) -> None:
    """Takes requests while earlier ones are being answered. When the trainer is gone, so is the process."""
    status = 1
    try:
        while (request := wire.read(pipe)) is not None:
            match request[0].pop("op"):
                case "prepare":
                    answers.give(worker.prepare, request)
                case "save":
                    saves.put((worker.save, request))
                case "join" | "open" | "agree" | "accumulate" | "update" | "snapshot" | "load" as op:
                    requests.put((getattr(worker, op), request))
                case op:
                    raise ValueError(f"request {op!r} is not one that this worker knows")
        status = 0
    except Exception:
        traceback.print_exc()
    finally:  # also where nobody reads what it says
        os._exit(status)


def work(answers: Answers, requests: queue.SimpleQueue) -> None:
    while True:
        answers.give(*requests.get())


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    worker, answers = Worker(), Answers(os.fdopen(ANSWERS, "wb"))
    saves: queue.SimpleQueue = queue.SimpleQueue()
    requests: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=receive, args=(os.fdopen(REQUESTS, "rb"), worker, answers, saves, requests), daemon=True).start()
    threading.Thread(target=work, args=(answers, saves), daemon=True).start()
    work(answers, requests)


if __name__ == "__main__":
    main()
