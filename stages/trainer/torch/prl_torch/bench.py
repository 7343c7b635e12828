"""Measures training: tokens per second and the share of the GPU's peak that is used (MFU).

    python -m prl_torch.bench [--lengths 16384,65536] [--sequences 1,8] [--steps 5]

A model of Qwen3-0.6B's shape with random weights, all of them trained by AdamW; rows of each length, packed from one sequence
and from several, every token but the first in the policy gradient's loss; a step is two micro-batches, which lie in pinned
memory as a trainer's do, and an update. Without a GPU the same is done with a tiny model on the CPU, whose figures say
nothing of a GPU's.
"""

import argparse
import gc
import json
import math
import tempfile
import time
from dataclasses import replace

import torch
import transformers

from .batch import MicroBatch
from .learner import Learner
from .loss import Settings, Step
from .make import QWEN3_06B, make
from .options import Optimizer, Options

MICRO = 2
LOSS = Settings("dppo", 1e-3, 0.2, 0.2, 0.1, 0.2, 0.28, 3e-4, 4e-4, 2, 0.2)
ADAMW = Optimizer((0.9, 0.95), 1e-8, 0.1, 1)
GPU = Options(device="cuda", dtype="bfloat16", compile=True, head_tokens=4096)

# Where there is no GPU.
TINY = {
    **QWEN3_06B,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
TINY_LENGTHS = [256, 1024]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=_numbers, help="of a row, in tokens")
    parser.add_argument("--sequences", type=_numbers, default=[1, 8], help="a row is packed from")
    parser.add_argument("--steps", type=int, default=5, help="that are measured, after two that are not")
    parser.add_argument("--options", type=json.loads, default={}, help='other settings, as in \'{"compile": false}\'')
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    gpu = torch.cuda.is_available()
    config, options = (QWEN3_06B, GPU) if gpu else (TINY, Options(device="cpu"))
    options = replace(options, **args.options)
    if gpu:
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {options}")
    else:
        print(f"There is no GPU here. A tiny model on the CPU, only to see that all of it runs; PyTorch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        make(folder, config)
        for length in args.lengths or ([16384, 65536] if gpu else TINY_LENGTHS):
            for sequences in args.sequences:
                print(measure(folder, options, [length // sequences] * sequences, args.steps), flush=True)


def measure(folder: str, options: Options, lengths: list[int], steps: int) -> str:
    """Trains on rows of such sequences; where memory runs out, once more with layers that are computed twice."""
    try:
        return _measure(folder, options, lengths, steps)
    except torch.OutOfMemoryError:
        if options.activation_checkpointing:
            raise
    return _measure(folder, replace(options, activation_checkpointing=True), lengths, steps)


def _measure(folder: str, options: Options, lengths: list[int], steps: int) -> str:
    gc.collect()  # the learner before
    torch.compiler.reset()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    learner = Learner(folder, LOSS, ADAMW, options)
    vocabulary = learner.policy.model.config.vocab_size
    batches = [micro_batch(lengths, vocabulary, seed) for seed in range(MICRO)]
    if learner.device.type == "cuda":
        for b in batches:
            b.row = b.row.pin()
    step = Step(0.01, sum(int(b.mask.sum()) for b in batches), 0, 0)
    for i in range(2 + steps):
        if i == 2:  # by then all is compiled
            _wait(learner.device)
            learner.report()
            start = time.perf_counter()
        for b in batches:
            figures = learner.accumulate(b, step)
            assert math.isfinite(figures["rl_loss"])
        applied, _ = learner.update(1e-6)
        assert applied
    _wait(learner.device)
    seconds, work = time.perf_counter() - start, learner.report()
    peak = work["flops_per_second"]
    share = f"{work['flops'] / seconds / peak:.1%} MFU of {peak / 1e12:.0f} TFLOP/s" if peak else "no MFU: the peak of this device is not known"
    return (
        f"{sum(lengths):6d} tokens in {len(lengths)} × {lengths[0]}: {work['tokens'] / seconds:10,.0f} tokens/s, {share}, "
        f"{work['flops'] / seconds / 1e12:.3g} TFLOP/s, {work['memory'] / 2**30:.1f} GiB, layers computed {1 + options.activation_checkpointing}×"
    )


def micro_batch(lengths: list[int], vocabulary: int, seed: int) -> MicroBatch:
    """Random sequences, every token but the first in component rl, their log-probabilities those of a uniform policy."""
    random, n = torch.Generator().manual_seed(seed), sum(lengths)
    zeros = torch.zeros(n)
    return MicroBatch(
        lengths=lengths,
        tokens=torch.randint(vocabulary, (n,), generator=random, dtype=torch.int32),
        mask=torch.cat([(torch.arange(k) > 0) for k in lengths]).to(torch.uint8),
        advantages=torch.randn(n, generator=random),
        sampled=zeros - math.log(vocabulary),
        temperatures=torch.ones(n),
        ce=zeros,
        ref_kl=zeros,
        teacher=zeros,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


if __name__ == "__main__":
    main()
