"""What a setting changes, and what it does not."""

import dataclasses
import unittest
from unittest import mock

import torch
from models import ADAMW, LOSS, MODELS, Count, batch, folder, step

from prl_torch.batch import MicroBatch
from prl_torch.learner import Learner
from prl_torch.optimizer import orthogonal
from prl_torch.options import Optimizer, Options

LR = 1e-2


def gradients(learner: Learner, b: MicroBatch) -> dict[str, torch.Tensor]:
    learner.accumulate(b, step(b))
    return {name: p.grad.clone() for name, p in learner.params.items()}


class Settings(unittest.TestCase):
    def test_gradients_do_not_depend_on_how_they_are_computed(self) -> None:
        at, b = folder(self, MODELS["qwen3"]), batch([19, 1, 30])
        want = gradients(Learner(at, LOSS, ADAMW), b)
        for options in (Options(activation_checkpointing=True), Options(head_tokens=3)):
            with self.subTest(options):
                for name, g in gradients(Learner(at, LOSS, ADAMW, options), b).items():
                    torch.testing.assert_close(g, want[name], atol=1e-5, rtol=1e-4)

    def test_checkpointing_computes_layers_twice_and_attention_once(self) -> None:
        at, b = folder(self, MODELS["qwen3"]), batch([19, 30])
        for on, norms in ((False, 1), (True, 2)):
            learner = Learner(at, LOSS, ADAMW, Options(activation_checkpointing=on))
            norm = learner.policy.layers()[1].input_layernorm
            with mock.patch.object(norm, "forward", wraps=norm.forward) as called, Count() as count:
                learner.accumulate(b, step(b))
            attention = count.ops["aten::_scaled_dot_product_flash_attention_for_cpu"]
            self.assertEqual((called.call_count, attention), (norms, 2 * 2), f"checkpointing {on}")  # layers × sequences

    def test_bfloat16_stays_near_and_keeps_weights_in_float32(self) -> None:
        at, b = folder(self, MODELS["qwen3"]), batch([19, 30])
        want, learner = gradients(Learner(at, LOSS, ADAMW), b), Learner(at, LOSS, ADAMW, Options(dtype="bfloat16"))
        got = gradients(learner, b)
        self.assertEqual({p.dtype for p in learner.params.values()} | {g.dtype for g in got.values()}, {torch.float32})
        far = torch.stack([(g - want[name]).norm() for name, g in got.items()]).norm() / torch.stack([g.norm() for g in want.values()]).norm()
        self.assertTrue(1e-4 < far < 0.1, f"gradients differ by {far}")

    def test_offloaded_state_updates_alike(self) -> None:
        at, b = folder(self, MODELS["qwen3"]), batch([19, 30])
        for name in ("adamw", "muon"):
            with self.subTest(name), mock.patch("prl_torch.optimizer.BUCKET", 1000):
                optimizer = dataclasses.replace(ADAMW, name=name)
                one, two = Learner(at, LOSS, optimizer), Learner(at, LOSS, optimizer, Options(offload_optimizer=True))
                self.assertGreater(len(two.updater.adamw), len(one.updater.adamw))
                for _ in range(2):
                    for learner in (one, two):
                        learner.accumulate(b, step(b))
                        learner.update(LR)
                torch.testing.assert_close(one.params, two.params, atol=0, rtol=0)
                torch.testing.assert_close(one.updater.state, two.updater.state, atol=0, rtol=0)
                self.assertFalse(any("exp_avg" in of for adamw, _ in two.updater.adamw for of in adamw.state.values()))

    def test_muon_is_pytorchs(self) -> None:
        at, b = folder(self, MODELS["qwen3"]), batch([19, 30])
        learner = Learner(at, LOSS, Optimizer((0.9, 0.95), 1e-8, 0.1, 0, "muon", 0.9))
        taken = [name for name, moments in learner.updater.moments.items() if moments == ["momentum"]]
        self.assertEqual(len(taken), 2 * 7)  # layers × matrices
        self.assertTrue(all(".layers." in name for name in taken))
        copies = {name: torch.nn.Parameter(learner.params[name].detach().clone()) for name in taken}
        muon = torch.optim.Muon(copies.values(), lr=LR, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
        for _ in range(2):
            learner.accumulate(b, step(b))
            for name, p in copies.items():
                p.grad = learner.params[name].grad.clone()
            learner.update(LR)
            muon.step()
            for name, p in copies.items():
                torch.testing.assert_close(learner.params[name].detach(), p.detach(), atol=1e-6, rtol=1e-5)

    def test_orthogonal_has_singular_values_near_one(self) -> None:
        values = torch.linalg.svdvals(orthogonal(torch.randn(20, 12, generator=torch.Generator().manual_seed(1))).float())
        self.assertTrue(0.5 < values.min() and values.max() < 1.4, values)

    def test_gradients_are_clipped(self) -> None:
        at, b = folder(self, MODELS["qwen2"]), batch([19, 30])
        learner = Learner(at, LOSS, dataclasses.replace(ADAMW, max_grad_norm=0.01, weight_decay=0))
        norm = torch.stack([g.norm() for g in gradients(learner, b).values()]).norm()
        applied, got = learner.update(LR)
        self.assertTrue(applied)
        self.assertAlmostEqual(got, float(norm), delta=1e-5 * got)
        momentum = torch.stack([s["exp_avg"].norm() for s in learner.updater.state.values()]).norm()
        self.assertAlmostEqual(float(momentum), 0.1 * 0.01, delta=1e-6)

    def test_what_cannot_be_is_refused(self) -> None:
        for want, make in (
            ("device", lambda: Options(device="tpu")),
            ("dtype", lambda: Options(dtype="float16")),
            ("head_tokens", lambda: Options(head_tokens=0)),
            ("optimizer", lambda: Optimizer((0.9, 0.95), 1e-8, 0, 1, "sgd")),
            ("attention = varlen", lambda: Options(attention="varlen").kernel(torch.device("cpu"))),
        ):
            with self.subTest(want), self.assertRaisesRegex(ValueError, want):
                make()


if __name__ == "__main__":
    unittest.main()
