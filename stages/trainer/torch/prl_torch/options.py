"""What a trainer sets: the optimizer, and how and where the model is computed, under the names of [trainer] and
[trainer.torch]."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Optimizer:
    """AdamW, or Muon for the matrices of the decoder's layers and AdamW for the rest."""

    betas: tuple[float, float]  # AdamW's decay rates of the first and the second moment
    eps: float  # what AdamW adds to the root of the second moment
    weight_decay: float  # per unit of learning rate, on matrices only
    max_grad_norm: float  # the gradient is scaled down to this global norm; 0 is no limit
    name: str = "adamw"  # or muon
    momentum: float = 0.95  # Muon's

    def __post_init__(self) -> None:
        _one_of("optimizer", self.name, "adamw", "muon")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum = {self.momentum}: from 0 to below 1")


@dataclass(frozen=True)
class Options:
    """The defaults compute in float32 and compile nothing."""

    device: str = "auto"  # cpu or cuda; auto is cuda where there is one
    dtype: str = "float32"  # of products; bfloat16 computes them under autocast. Weights and sums are in float32.
    attention: str = "auto"  # varlen (one kernel for all sequences; cuda and bfloat16) or sdpa (one call for each); auto is varlen where it runs
    activation_checkpointing: bool = False  # in the backward pass a layer is computed again, but for its attention
    compile: bool = False  # layers and the head's arithmetic through torch.compile
    head_tokens: int = 1024  # logits exist for so many tokens at a time
    offload_optimizer: bool = False  # the optimizer's state is in the host's memory, pinned beside a GPU
    lora: dict[str, Any] | None = None  # settings of peft's LoraConfig, and seed: what is trained is an adapter

    def __post_init__(self) -> None:
        _one_of("device", self.device, "auto", "cpu", "cuda")
        _one_of("dtype", self.dtype, "float32", "bfloat16")
        _one_of("attention", self.attention, "auto", "varlen", "sdpa")
        if self.head_tokens < 1:
            raise ValueError(f"head_tokens = {self.head_tokens}: at least 1")

    def place(self, rank: int) -> torch.device:
        """The device of a process: of several GPUs those that its rank counts to."""
        if self.device == "cpu" or self.device == "auto" and not torch.cuda.is_available():
            return torch.device("cpu")
        if not torch.cuda.is_available():
            raise ValueError("device = cuda: PyTorch finds none on this machine")
        return torch.device("cuda", rank % torch.cuda.device_count())

    def kernel(self, device: torch.device) -> str:
        """How attention is computed there: varlen or sdpa."""
        runs = device.type == "cuda" and self.dtype == "bfloat16"
        if self.attention == "varlen" and not runs:
            raise ValueError(f"attention = varlen: needs device cuda and dtype bfloat16, not {device.type} and {self.dtype}")
        return "varlen" if runs and self.attention != "sdpa" else "sdpa"


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r}: {', '.join(known[:-1])} or {known[-1]}")
