"""Adapters are trained and published under peft's names; what is under them stays as it is."""

import json
import pathlib
import tempfile
import unittest

import peft
import safetensors
import safetensors.torch
import torch
from models import ADAMW, LOSS, MODELS, batch, folder, step
from transformers import AutoModelForCausalLM

from prl_torch.learner import Learner
from prl_torch.options import Options

LORA = Options(lora={"r": 3, "lora_alpha": 12})
LENGTHS = [19, 30]


def trained(at: str, options: Options = LORA) -> Learner:
    learner, b = Learner(at, LOSS, ADAMW, options), batch(LENGTHS)
    for _ in range(2):
        learner.accumulate(b, step(b))
        learner.update(1e-2)
    return learner


class Adapters(unittest.TestCase):
    def test_peft_reads_what_is_published(self) -> None:
        for name in ("qwen3", "llama, untied"):
            with self.subTest(name), tempfile.TemporaryDirectory() as out:
                at = folder(self, MODELS[name])
                learner = trained(at)
                learner.snapshot("weights")(f"{out}/adapter_model.safetensors")
                with safetensors.safe_open(f"{out}/adapter_model.safetensors", "pt") as f:
                    config = f.metadata()["adapter_config"]
                    self.assertIn("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", f.keys())
                self.assertEqual(json.loads(config)["target_modules"], ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"])
                pathlib.Path(out, "adapter_config.json").write_text(config)
                model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(at), out)
                tokens = batch(LENGTHS).tokens.long()
                with torch.no_grad():
                    got, base = learner.logits(tokens, LENGTHS), Learner(at, LOSS, ADAMW).logits(tokens, LENGTHS)
                    want = torch.cat([model(t[None]).logits[0] for t in tokens.split(LENGTHS)])
                torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
                self.assertGreater(float((got - base).abs().max()), 1e-2)

    def test_base_stays(self) -> None:
        at = folder(self, MODELS["qwen3"])
        learner, before = trained(at), safetensors.torch.load_file(f"{at}/model.safetensors")
        self.assertTrue(all("lora_" in name for name in learner.params))
        for name, p in learner.policy.model.named_parameters():
            if "lora_" not in name:
                self.assertIsNone(p.grad)
                self.assertTrue(torch.equal(p, before[name.replace(".base_layer", "")]), name)

    def test_goes_on_elsewhere(self) -> None:
        at, b = folder(self, MODELS["qwen3"]), batch(LENGTHS)
        one, two = trained(at), Learner(at, LOSS, ADAMW, LORA)
        with tempfile.TemporaryDirectory() as out:
            for what in ("weights", "checkpoint"):
                one.snapshot(what)(f"{out}/{what}")
            two.load(f"{out}/weights")
            two.restore(f"{out}/checkpoint")
        for learner in (one, two):
            learner.accumulate(b, step(b))
            learner.update(1e-2)
        torch.testing.assert_close(one.params, two.params, atol=1e-6, rtol=0)

    def test_new_adapters_are_the_same_in_every_process(self) -> None:
        at = folder(self, MODELS["qwen3"])
        one = Learner(at, LOSS, ADAMW, LORA)
        torch.randn(3)
        two, three = Learner(at, LOSS, ADAMW, LORA), Learner(at, LOSS, ADAMW, Options(lora={"r": 3, "lora_alpha": 12, "seed": 1}))
        torch.testing.assert_close(one.params, two.params, atol=0, rtol=0)
        self.assertFalse(all(torch.equal(one.params[n], three.params[n]) for n in one.params))

    def test_what_the_head_would_not_know_of_is_refused(self) -> None:
        at = folder(self, MODELS["llama, untied"])
        for lora in ({"target_modules": ["lm_head"]}, {"target_modules": ["embed_tokens"]}, {"bias": "all"}, {"lora_dropout": 0.1}):
            with self.subTest(lora), self.assertRaisesRegex(ValueError, "lora: .* not supported"):
                Learner(at, LOSS, ADAMW, Options(lora=lora))


if __name__ == "__main__":
    unittest.main()
