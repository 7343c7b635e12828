"""The work that is reported is what PyTorch counts, less what is computed twice."""

import unittest

from models import ADAMW, LOSS, MODELS, batch, folder, step
from torch.utils.flop_counter import FlopCounterMode

from prl_torch.learner import Learner
from prl_torch.options import Options

LENGTHS = [19, 1, 30]
LAYERS, WIDTH, HEADS, HEAD_DIM, VOCABULARY = 2, 32, 4, 16, 61  # of the model


class Report(unittest.TestCase):
    def test_operations_are_those_of_the_products(self) -> None:
        b, learner = batch(LENGTHS), Learner(folder(self, MODELS["qwen3"]), LOSS, ADAMW)
        with FlopCounterMode(display=False) as counter:
            learner.accumulate(b, step(b))
        products = sum(v for op, v in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
        again = 2 * VOCABULARY * WIDTH * (sum(LENGTHS) - len(LENGTHS))  # the head's logits, in the backward pass
        attention = 6 * LAYERS * HEADS * HEAD_DIM * sum(n * n for n in LENGTHS)
        report = learner.report()
        self.assertAlmostEqual((report["flops"] - attention) / (products - again), 1, delta=0.02)  # norms are no products
        self.assertEqual(report["tokens"], sum(LENGTHS))
        self.assertGreater(report["memory"], 1 << 20)
        report = learner.report()
        self.assertEqual((report["tokens"], report["flops"]), (0, 0))

    def test_frozen_parameters_have_no_gradients_of_their_own(self) -> None:
        at, b, flops = folder(self, MODELS["qwen3"]), batch(LENGTHS), []
        for options in (Options(), Options(lora={"r": 1, "target_modules": ["q_proj"]})):
            learner = Learner(at, LOSS, ADAMW, options)
            learner.accumulate(b, step(b))
            flops.append(learner.report()["flops"] - 6 * LAYERS * HEADS * HEAD_DIM * sum(n * n for n in LENGTHS))
        self.assertAlmostEqual(flops[1] / flops[0], 4 / 6, delta=0.03)


if __name__ == "__main__":
    unittest.main()
