"""A causal language model that learns: gradients summed over micro-batches and ranks, then one update."""

import torch
from torch import Tensor

from . import files, lora, parallel
from .batch import MicroBatch
from .files import Snapshot
from .loss import Settings, Step, gradient
from .model import Policy
from .optimizer import Updater
from .options import Optimizer, Options
from .parallel import Group
from .work import Work


class Learner:
    """One rank's part of it. Every rank makes the same calls in the same order, a micro-batch without sequences where it has
    no other."""

    def __init__(self, folder: str, settings: Settings, optimizer: Optimizer, options: Options = Options(), group: Group = Group()):
        """Loads the model of a Hugging Face folder: configuration and safetensors. No code that is in it runs."""
        self.settings, self.options, self.group = settings, options, group
        self.device = options.place(group.rank)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.policy = Policy(folder, options, self.device)
        layers = self.policy.layers()
        self.work = Work(self.policy.model, layers, self.device, self.policy.dtype)
        if group.world_size > 1:
            parallel.shard(self.policy, layers, group, self.device, self.policy.dtype)
        else:
            self.policy.to(self.device)
        self.policy.check_device(self.device)
        if group.world_size > 1:
            self.policy.reshard()  # as a backward pass does
        rename = lora.published if self.policy.adapter_config else self.policy.names().__getitem__
        named = self.policy.model.named_parameters()  # tied ones once
        self.params = {rename(name): p for name, p in named if p.requires_grad}
        hidden = {id(p) for p in layers.parameters() if p.dim() == 2}
        self.updater = Updater(self.params, {n for n, p in self.params.items() if id(p) in hidden}, optimizer, options.offload_optimizer, group)

    def logits(self, tokens: Tensor, lengths: list[int]) -> Tensor:
        """The logits [n, vocabulary] of packed sequences, tokens [n], of a learner that is alone."""
        return self.policy.logits(tokens, lengths)

    def accumulate(self, batch: MicroBatch, step: Step) -> dict[str, float]:
        """Adds the gradient of the loss over a micro-batch to the sum. Returns the figures of the batch: sums over tokens."""
        row = batch.row.to(self.device)
        if len(row.rows) == 0 and self.group.world_size == 1:
            return {}
        logp, entropy = self.policy(row)
        d_logp, d_entropy, figures = gradient(self.settings, step, row, logp.detach().double(), entropy.detach().double())
        torch.autograd.backward([logp, entropy], [d_logp.float(), d_entropy.float()])
        self.work.add(batch.lengths, len(row.rows))
        return _read(figures)

    def update(self, lr: float) -> tuple[bool, float]:
        """Updates the weights by the gradient summed since the last update. Returns whether it did, which it does not where
        the gradient is not finite, and the gradient's norm over all ranks before clipping."""
        return self.updater.update(lr)

    @torch.no_grad()
    def snapshot(self, what: str) -> Snapshot | None:
        """Copies the trained weights ("weights", tied ones once) or the optimizer's state ("checkpoint") as they are now.
        On rank 0 returns what writes them into a file, in any thread, while training goes on: called with a path, it gives
        the file's size in bytes and its SHA-256 in hex. Other ranks have None."""
        if what == "weights":
            config = self.policy.adapter_config
            tensors = ((name, p, parallel.local(p)) for name, p in self.params.items())
            snapshot = Snapshot({"adapter_config": config} if config else None)
        elif what == "checkpoint":
            tensors, snapshot = self.updater.checkpoint(), Snapshot()
        else:
            raise ValueError(f"snapshot of {what!r}: weights or checkpoint")
        for name, p, part in tensors:
            t = parallel.whole(part, p)
            if self.group.rank == 0:
                snapshot.add(name, t)
        return snapshot if self.group.rank == 0 else None

    @torch.no_grad()
    def load(self, path: str) -> None:
        """Replaces the trained weights by those of a snapshot's file. Every rank reads it."""
        get = files.read(path, {name: tuple(p.shape) for name, p in self.params.items()})
        for name, p in self.params.items():
            parallel.local(p).copy_(parallel.part(get(name).to(self.device), p))

    @torch.no_grad()
    def restore(self, path: str) -> None:
        """Replaces the optimizer's state by that of a snapshot's file. Every rank reads it."""
        get = files.read(path, self.updater.shapes())
        if not (steps := get("step").item()) >= 0:
            raise ValueError("the state of an optimizer has no count of updates")
        self.updater.restore(steps, get)

    def report(self) -> dict[str, float]:
        """What this rank did since the last report: tokens that were in micro-batches, flops (work.py) and the peak of
        memory in bytes: of the device, on the CPU of the process since it began. And of the device, flops_per_second at
        best in the dtype, 0 where it is not known."""
        return self.work.report()


def _read(figures: dict[str, int | Tensor]) -> dict[str, float]:
    """The figures as numbers. They are fetched at once: this is where the host waits for the device."""
    there = {name: v for name, v in figures.items() if isinstance(v, Tensor)}
    values = torch.stack([v.double() for v in there.values()]).tolist()
    return {name: float(v) for name, v in (figures | dict(zip(there, values))).items()}


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: on the CPU PyTorch has no type for it."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "not enough memory" in str(error) or "can't allocate memory" in str(error)
