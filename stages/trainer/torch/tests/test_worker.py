"""What the worker promises of models that the native learner does not know."""

import hashlib
import os
import pathlib
import tempfile
import unittest
from unittest import mock

import safetensors.torch
import torch
import transformers
from models import ADAMW, GROUPED, LOSS, MODELS, batch, folder, part, step
from transformers import AttentionInterface

from prl_torch import attention
from prl_torch.learner import Learner, out_of_memory
from prl_torch.options import Options


class Models(unittest.TestCase):
    def test_packed_sequences_are_trained_as_alone(self) -> None:
        lengths = [19, 1, 30, 7]
        for name, config in MODELS.items():
            with self.subTest(name):
                learner, b = Learner(folder(self, config), LOSS, ADAMW), batch(lengths)
                packed = learner.accumulate(b, step(b))
                gradient = {k: p.grad.clone() for k, p in learner.params.items()}
                learner.updater.update(0)
                alone, start = 0.0, 0
                for length in lengths:
                    alone += learner.accumulate(part(b, start, length), step(b)).get("rl_loss", 0)
                    start += length
                self.assertAlmostEqual(packed["rl_loss"], alone, delta=1e-5)
                self.assertGreater(max(float(g.abs().max()) for g in gradient.values()), 1e-3)
                for key, p in learner.params.items():
                    torch.testing.assert_close(p.grad, gradient[key], atol=1e-5, rtol=1e-4, msg=key)

    def test_logits_are_those_of_transformers(self) -> None:
        lengths = [19, 1, 30, 7]  # some longer than the window
        tokens = batch(lengths).tokens.long()
        for name, config in MODELS.items():
            with self.subTest(name), torch.no_grad():
                at = folder(self, config)
                model = transformers.AutoModelForCausalLM.from_pretrained(at)
                want = torch.cat([model(t[None]).logits[0] for t in tokens.split(lengths)])
                torch.testing.assert_close(Learner(at, LOSS, ADAMW).logits(tokens, lengths), want, atol=1e-4, rtol=1e-4)

    def test_layers_that_have_a_window_must_say_so(self) -> None:
        at = folder(self, transformers.MistralConfig(**GROUPED, sliding_window=500))  # longer than what a new policy is tried on

        def silent(*args, sliding_window=None, **kwargs):
            return attention.attention(*args, **kwargs)

        with mock.patch.dict(AttentionInterface._global_mapping, {attention.NAME: silent}):
            with self.assertRaisesRegex(ValueError, "2 layers have a sliding window"):
                Learner(at, LOSS, ADAMW)

    def test_model_that_mixes_packed_sequences_is_refused(self) -> None:
        config = transformers.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"])
        with self.assertRaisesRegex(ValueError, "keep packed sequences apart"):
            Learner(folder(self, config), LOSS, ADAMW)

    def test_model_whose_positions_depend_on_the_row_is_refused(self) -> None:
        config = transformers.LlamaConfig(**GROUPED, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
        with self.assertRaisesRegex(ValueError, "rotary embeddings of type dynamic"):
            Learner(folder(self, config), LOSS, ADAMW)

    def test_model_that_the_device_computes_otherwise_is_refused(self) -> None:
        def mixes(query, key, value, scaling, window, packing):
            return attention._each(query, key, value, scaling, window, attention.Packing((query.shape[2],), packing.starts, query.shape[2]))

        at = folder(self, MODELS["qwen3"])
        for dtype in ("float32", "bfloat16"):
            with self.subTest(dtype), mock.patch.dict(attention.KERNELS):
                wrong = mock.patch.object(attention, "prepare", side_effect=lambda kernel, _: attention.KERNELS.update({kernel: mixes}))
                with wrong, self.assertRaisesRegex(ValueError, "log-probabilities are off"):
                    Learner(at, LOSS, ADAMW, Options(dtype=dtype))

    def test_published_names_are_those_of_the_files(self) -> None:
        for name, config in MODELS.items():
            with self.subTest(name):
                at = folder(self, config)
                self.assertEqual(Learner(at, LOSS, ADAMW).params.keys(), safetensors.torch.load_file(f"{at}/model.safetensors").keys())

    def test_experts_are_trained_by_an_adapter_only(self) -> None:
        at = folder(self, transformers.Qwen3MoeConfig(**GROUPED, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24))
        with self.assertRaisesRegex(ValueError, "experts.* is several tensors in the model's files.*not supported: train an adapter"):
            Learner(at, LOSS, ADAMW)
        learner, b = Learner(at, LOSS, ADAMW, Options(lora={"r": 2, "target_modules": ["q_proj"]})), batch([19, 1, 30])
        learner.accumulate(b, step(b))
        applied, norm = learner.update(1e-2)
        self.assertTrue(applied and norm > 0)

    def test_weights_that_are_missing_are_refused(self) -> None:
        at = folder(self, MODELS["qwen2"])
        tensors = safetensors.torch.load_file(f"{at}/model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        safetensors.torch.save_file(tensors, f"{at}/model.safetensors", metadata={"format": "pt"})
        with self.assertRaisesRegex(ValueError, "lack 1 tensors, model.layers.1.mlp.up_proj.weight"):
            Learner(at, LOSS, ADAMW)

    def test_pickled_weights_are_refused(self) -> None:
        at = folder(self, MODELS["qwen2"])
        torch.save(safetensors.torch.load_file(f"{at}/model.safetensors"), f"{at}/pytorch_model.bin")
        os.remove(f"{at}/model.safetensors")
        with self.assertRaises(OSError):
            Learner(at, LOSS, ADAMW)

    def test_weights_and_checkpoint_go_on_elsewhere(self) -> None:
        for name in ("qwen3", "llama, untied"):
            with self.subTest(name), tempfile.TemporaryDirectory() as out:
                at, b = folder(self, MODELS[name]), batch([20, 12])
                one, two = Learner(at, LOSS, ADAMW), Learner(at, LOSS, ADAMW)
                one.accumulate(b, step(b))
                self.assertTrue(one.update(1e-2)[0])
                writes = {what: one.snapshot(what) for what in ("weights", "checkpoint")}
                copies = {what: dict(w.tensors) for what, w in writes.items()}
                one.accumulate(b, step(b))
                one.update(1e-2)  # which the snapshots know nothing of
                for what, write in writes.items():
                    size, total = write(f"{out}/{what}")
                    data = pathlib.Path(out, what).read_bytes()
                    self.assertEqual((size, total), (len(data), hashlib.sha256(data).hexdigest()))
                    self.assertEqual(data, safetensors.torch.save(copies[what]))
                two.load(f"{out}/weights")
                two.restore(f"{out}/checkpoint")
                two.accumulate(b, step(b))
                two.update(1e-2)
                torch.testing.assert_close(one.params, two.params, atol=1e-6, rtol=0)
                torch.testing.assert_close(one.snapshot("checkpoint").tensors, two.snapshot("checkpoint").tensors, atol=1e-6, rtol=0)
                self.assertEqual(sorted(os.listdir(out)), ["checkpoint", "weights"])
                with self.assertRaisesRegex(ValueError, "tensor .* has shape .*, the model's has"):
                    two.load(f"{out}/checkpoint")

    def test_snapshot_that_fails_leaves_nothing(self) -> None:
        learner = Learner(folder(self, MODELS["qwen2"]), LOSS, ADAMW)
        with tempfile.TemporaryDirectory() as out:
            os.mkdir(f"{out}/weights")
            with self.assertRaises(OSError):
                learner.snapshot("weights")(f"{out}/weights")
            self.assertEqual(os.listdir(out), ["weights"])

    def test_out_of_memory_is_told_apart(self) -> None:
        for name, fail, want in (
            ("torch", lambda: torch.empty(1 << 55, dtype=torch.uint8), True),
            ("python", lambda: bytearray(1 << 60), True),
            ("another error", lambda: torch.empty(2) @ torch.empty(3), False),
        ):
            with self.subTest(name), self.assertRaises((RuntimeError, MemoryError)) as failed:
                fail()
            self.assertEqual(out_of_memory(failed.exception), want)


if __name__ == "__main__":
    unittest.main()
