"""Tiny models with random weights, and batches for them."""

import collections
import dataclasses
import tempfile
import unittest

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from prl_torch.batch import MicroBatch
from prl_torch.loss import Settings, Step
from prl_torch.options import Optimizer

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # threads would only wait for each other

LOSS = Settings("dppo", 1e-3, 0.2, 0.2, 0.1, 0.2, 0.28, 3e-4, 4e-4, 2, 0.2)
ADAMW = Optimizer((0.9, 0.95), 1e-8, 0.1, 1)
SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
GROUPED = {**SIZES, "num_key_value_heads": 2}

MODELS = {
    "llama, untied": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=False),
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=16, tie_word_embeddings=True),
    "mistral, sliding window": transformers.MistralConfig(**GROUPED, sliding_window=8),
    "gpt-neox": transformers.GPTNeoXConfig(**SIZES),
}


def folder(test: unittest.TestCase, config: transformers.PreTrainedConfig) -> str:
    """A folder with a model of random weights, all of which matter."""
    temp = tempfile.TemporaryDirectory()
    test.addCleanup(temp.cleanup)
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4 if p.dim() > 1 else 1)
    model.save_pretrained(temp.name)
    return temp.name


def batch(lengths: list[int], vocab: int = 61) -> MicroBatch:
    """Random sequences of which all tokens but the first are in the loss; none for a dummy."""
    random = torch.Generator().manual_seed(sum(lengths))
    n = sum(lengths)
    return MicroBatch(
        lengths=lengths,
        tokens=torch.randint(0, vocab, (n,), generator=random, dtype=torch.int32),
        mask=torch.cat([torch.zeros(0), *((torch.arange(k) > 0) for k in lengths)]).to(torch.uint8),
        advantages=torch.randn(n, generator=random),
        sampled=-4 + torch.rand(n, generator=random),
        temperatures=0.6 + torch.rand(n, generator=random),
        ce=torch.zeros(n),
        ref_kl=torch.zeros(n),
        teacher=torch.zeros(n),
    )


def part(b: MicroBatch, start: int, length: int) -> MicroBatch:
    """One of the sequences, alone."""
    cut = {f.name: getattr(b, f.name)[start : start + length] for f in dataclasses.fields(b)[1:]}
    return MicroBatch(lengths=[length], **cut)


def step(*batches: MicroBatch, entropy_coef: float = 0.01) -> Step:
    """The step of which these are all micro-batches."""
    return Step(entropy_coef, sum(int(b.mask.sum()) for b in batches), 0, 0)


class Count(TorchDispatchMode):
    """Counts operations that are carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops[op._schema.name] += 1
        return op(*args, **(kwargs or {}))
