"""What the worker promises of models that the native learner does not know."""

import dataclasses
import os
import tempfile
import unittest

import safetensors.torch
import torch
import transformers

from prl_torch.batch import CHUNK_TOKENS, MicroBatch
from prl_torch.learner import Learner, Optimizer, out_of_memory
from prl_torch.loss import Settings, Step

transformers.utils.logging.disable_progress_bar()

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
    """A folder with a model of random weights."""
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
    """Random sequences of which all tokens but the first are in the loss."""
    random = torch.Generator().manual_seed(sum(lengths))
    n = sum(lengths)
    return MicroBatch(
        lengths=lengths,
        tokens=torch.randint(0, vocab, (n,), generator=random, dtype=torch.int32),
        mask=torch.cat([(torch.arange(k) > 0) for k in lengths]).to(torch.uint8),
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


class Models(unittest.TestCase):
    def test_packed_sequences_are_trained_as_alone(self) -> None:
        lengths = [19, 1, 30, 7]
        for name, config in MODELS.items():
            with self.subTest(name):
                learner, b = Learner(folder(self, config), LOSS, ADAMW), batch(lengths)
                step = Step(0.01, int(b.mask.sum()), 0, 0)
                packed = learner.accumulate(b, step)
                gradient = {k: p.grad.clone() for k, p in learner.params.items()}
                learner.adamw.zero_grad(set_to_none=False)
                alone, start = 0.0, 0
                for length in lengths:
                    alone += learner.accumulate(part(b, start, length), step).get("rl_loss", 0)
                    start += length
                self.assertAlmostEqual(packed["rl_loss"], alone, delta=1e-5)
                self.assertGreater(max(float(g.abs().max()) for g in gradient.values()), 1e-3)
                for key, p in learner.params.items():
                    torch.testing.assert_close(p.grad, gradient[key], atol=1e-5, rtol=1e-4, msg=key)

    def test_chunks_add_up(self) -> None:
        b = batch([CHUNK_TOKENS // 2, CHUNK_TOKENS // 2, 9, CHUNK_TOKENS + 5, 1, 40])
        chunks = list(b.chunks())
        self.assertEqual([len(c.tokens) for c in chunks], [CHUNK_TOKENS, 9, CHUNK_TOKENS + 5, 41])
        self.assertTrue(torch.equal(torch.cat([c.tokens for c in chunks]), b.tokens.long()))
        self.assertEqual(sum(len(c.targets) for c in chunks), int(b.mask.sum()))

    def test_model_that_mixes_packed_sequences_is_refused(self) -> None:
        config = transformers.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"])
        with self.assertRaisesRegex(ValueError, "keep packed sequences apart"):
            Learner(folder(self, config), LOSS, ADAMW)

    def test_pickled_weights_are_refused(self) -> None:
        at = folder(self, MODELS["qwen2"])
        torch.save(safetensors.torch.load_file(f"{at}/model.safetensors"), f"{at}/pytorch_model.bin")
        os.remove(f"{at}/model.safetensors")
        with self.assertRaises(OSError):
            Learner(at, LOSS, ADAMW)

    def test_weights_and_checkpoint_go_on_elsewhere(self) -> None:
        for name in ("qwen3", "llama, untied"):
            with self.subTest(name):
                at, b = folder(self, MODELS[name]), batch([20, 12])
                one, two = Learner(at, LOSS, ADAMW), Learner(at, LOSS, ADAMW)
                step = Step(0, int(b.mask.sum()), 0, 0)
                one.accumulate(b, step)
                self.assertTrue(one.update(1e-2)[0])
                two.load(one.weights())
                two.restore(one.checkpoint())
                for learner in (one, two):
                    learner.accumulate(b, step)
                    learner.update(1e-2)
                torch.testing.assert_close(safetensors.torch.load(one.weights()), safetensors.torch.load(two.weights()), atol=1e-6, rtol=0)
                self.assertNotEqual(one.checkpoint(), Learner(at, LOSS, ADAMW).checkpoint())
                with self.assertRaisesRegex(ValueError, "(embed_tokens|lm_head).weight has shape None"):
                    two.load(safetensors.torch.save({k: v for k, v in safetensors.torch.load(one.weights()).items() if k.startswith("model.l")}))

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
