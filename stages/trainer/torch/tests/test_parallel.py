"""Two ranks train as one does."""

import multiprocessing
import os
import socket
import tempfile
import unittest
from unittest import mock

import safetensors.torch
import torch
from models import ADAMW, LOSS, MODELS, batch, folder, step
from torch.distributed import distributed_c10d

from prl_torch import parallel
from prl_torch.__main__ import await_rank_0, lost_peer
from prl_torch.learner import Learner
from prl_torch.options import Options, Optimizer

TIMEOUT = 240.0

# The micro-batches of three steps, of rank 0 and 1 in turn. In the second step rank 1 has a dummy.
STEPS = [[[9, 14], [20], [7, 3, 11], [16]], [[12, 12], [], [8], [5, 6]], [[17], [4, 21], [10], [13]]]
LR = 1e-2

# Optimizer, options, and how far apart weights may end: what rounds to bfloat16 makes much of a last bit.
SETTINGS = {
    "adamw, offloaded": (ADAMW, Options(offload_optimizer=True, activation_checkpointing=True), 1e-4),
    "muon, lora": (Optimizer((0.9, 0.95), 1e-8, 0.1, 1, "muon"), Options(lora={"r": 3}), 2e-3),
}


def train(learner: Learner, lengths: list[list[int]]) -> tuple[dict[str, float], float]:
    """This rank's part of a step: its figures, and the norm of the gradient over all ranks."""
    batches = [batch(of) for of in lengths]
    total: dict[str, float] = {}
    for b in batches[learner.group.rank :: learner.group.world_size]:
        for name, v in learner.accumulate(b, step(*batches)).items():
            total[name] = total.get(name, 0) + v
    applied, norm = learner.update(LR)
    assert applied
    return total, norm


def run(learner: Learner, again: Learner, out: str) -> list[tuple[dict[str, float], float]]:
    """Two steps, then the third twice: once by a learner that goes on from files."""
    results = [train(learner, STEPS[0]), train(learner, STEPS[1])]
    for what in ("weights", "checkpoint"):
        write = learner.snapshot(what)
        assert (write is None) == (learner.group.rank > 0)
        if write is not None:
            write(f"{out}/{what}-2")
    learner.group.agree(f"{out} is written", "")
    again.load(f"{out}/weights-2")
    again.restore(f"{out}/checkpoint-2")
    for name, who in (("3", learner), ("again", again)):
        results.append(train(who, STEPS[2]))
        for what in ("weights", "checkpoint"):
            if (write := who.snapshot(what)) is not None:
                write(f"{out}/{what}-{name}")
    return results


def rank(r: int, port: int, model: str, out: str, results: multiprocessing.SimpleQueue) -> None:
    torch.set_num_threads(1)
    pickled = AssertionError("something is pickled")
    with mock.patch.object(distributed_c10d, "_pickler", side_effect=pickled), mock.patch.object(distributed_c10d, "_unpickler", side_effect=pickled):
        group = parallel.join(r, 2, f"127.0.0.1:{port}", TIMEOUT)
        said, done = group.agree("version", f"rank {r} says so"), {}
        for name, (optimizer, options, _) in SETTINGS.items():
            done[name] = run(*(Learner(model, LOSS, optimizer, options, group) for _ in range(2)), f"{out}/{name}")
    results.put((r, said, done))


class Ranks(unittest.TestCase):
    def setUp(self) -> None:
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.out = temp.name
        for ranks in (1, 2):
            for name in SETTINGS:
                os.makedirs(f"{self.out}/{ranks}/{name}")

    def two(self, model: str) -> list[tuple[int, str, dict]]:
        """What two ranks have done, rank 0 first."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["prl_torch.learner"])
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        results = context.SimpleQueue()
        processes = [context.Process(target=rank, args=(r, port, model, f"{self.out}/2", results)) for r in range(2)]
        for p in processes:
            p.start()
        for p in processes:
            p.join(TIMEOUT)
            self.assertEqual(p.exitcode, 0)
        return sorted(results.get() for _ in processes)

    def read(self, ranks: int, name: str, file: str) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(f"{self.out}/{ranks}/{name}/{file}")

    def test_rank_0_that_does_not_come_is_told_apart(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))  # and nobody listens
            with self.assertRaisesRegex(ConnectionError, "rank 0 does not listen") as failed:
                await_rank_0("127.0.0.1:%d" % s.getsockname()[1], 0)
        self.assertTrue(lost_peer(failed.exception))

    def test_two_ranks_train_as_one(self) -> None:
        model = folder(self, MODELS["qwen3"])
        (_, said_a, done_a), (_, said_b, done_b) = self.two(model)
        self.assertEqual((said_a, said_b), ("rank 0 says so", "rank 0 says so"))
        for name, (optimizer, options, tolerance) in SETTINGS.items():
            with self.subTest(name):
                one = Learner(model, LOSS, optimizer, options)
                before = {key: p.detach().clone() for key, p in one.params.items()}
                want = run(one, Learner(model, LOSS, optimizer, options), f"{self.out}/1/{name}")
                for i, (figures, norm) in enumerate(want):
                    (a, norm_a), (b, norm_b) = done_a[name][i], done_b[name][i]
                    self.assertEqual(a.keys(), b.keys())
                    for key, v in figures.items():
                        self.assertAlmostEqual(v, a[key] + b[key], delta=10 * tolerance * max(1, abs(v)), msg=f"{key} of step {i}")
                    self.assertAlmostEqual(norm, norm_a, delta=tolerance * norm)
                    self.assertEqual(norm_a, norm_b)
                for file in ("weights-2", "checkpoint-2", "weights-3", "checkpoint-3", "weights-again", "checkpoint-again"):
                    torch.testing.assert_close(
                        self.read(2, name, file), self.read(1, name, file), atol=tolerance, rtol=0, msg=lambda said: f"{file}: {said}"
                    )
                after = self.read(2, name, "weights-3")
                self.assertGreater(max(float((after[key] - p).abs().max()) for key, p in before.items()), tolerance)


if __name__ == "__main__":
    unittest.main()
