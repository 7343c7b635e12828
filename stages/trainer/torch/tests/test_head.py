"""The head never has the logits of more than a few tokens, and its gradients are those of the plain computation."""

import unittest

import torch

from prl_torch.head import Head, logits

WIDTH, VOCABULARY, TOKENS, AT_A_TIME = 24, 37, 50, 7


class Heads(unittest.TestCase):
    def setUp(self) -> None:
        random = torch.Generator().manual_seed(1)
        self.hidden = torch.randn(TOKENS, WIDTH, generator=random)
        self.weight, self.bias = torch.randn(VOCABULARY, WIDTH, generator=random), torch.randn(VOCABULARY, generator=random)
        self.targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=random)
        self.temperatures = 0.5 + torch.rand(TOKENS, generator=random)
        self.slopes = [torch.randn(TOKENS, generator=random) for _ in range(2)]

    def plain(self, hidden, weight, bias, targets, temperatures):
        z = hidden @ weight.T + (0 if bias is None else bias)
        log_p = (z / temperatures[:, None]).log_softmax(-1)
        return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)

    def run_with(self, head, bias: bool, dtype: torch.dtype = torch.float32):
        given = [t.clone().to(dtype).requires_grad_() for t in (self.hidden, self.weight, self.bias)]
        out = head(given[0], given[1], given[2] if bias else None, self.targets, self.temperatures.to(dtype))
        torch.autograd.backward(out, [s.to(dtype) for s in self.slopes])
        return [*(o.detach() for o in out), *(t.grad for t in given[: 3 if bias else 2])]

    def test_gradients_are_those_of_the_plain_computation(self) -> None:
        for bias in (False, True):
            for tokens in (1, AT_A_TIME, TOKENS, 1000):
                with self.subTest(bias=bias, tokens=tokens):
                    want = self.run_with(self.plain, bias, torch.float64)
                    for got, w in zip(self.run_with(Head(tokens, torch.float32), bias), want, strict=True):
                        torch.testing.assert_close(got, w.float(), atol=2e-5, rtol=1e-4)

    def test_bfloat16_stays_near(self) -> None:
        want = self.run_with(self.plain, True)
        for got, w in zip(self.run_with(Head(AT_A_TIME, torch.bfloat16), True), want, strict=True):
            self.assertEqual(got.dtype, torch.float32)
            self.assertLess(float((got - w).norm() / w.norm()), 0.02)

    def test_logits_of_few_tokens_exist_at_once(self) -> None:
        head, seen = Head(AT_A_TIME, torch.float32), []

        def spy(hidden, weight, bias):
            seen.append(len(hidden))
            return logits(hidden, weight, bias)

        head.logits = spy
        tensors: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (tensors.append(t.numel()), t)[1], lambda t: t):
            self.run_with(head, True)
        self.assertEqual(max(seen), AT_A_TIME)
        self.assertEqual(sum(seen), 2 * TOKENS)  # once forward, once backward
        self.assertLess(max(tensors), TOKENS * VOCABULARY)  # nothing of that size is kept in between

    def test_no_token_has_gradients_of_zero(self) -> None:
        hidden, weight = self.hidden.clone().requires_grad_(), self.weight.clone().requires_grad_()
        nothing = torch.zeros(0, dtype=torch.int64)
        logp, entropy = Head(AT_A_TIME, torch.float32)(hidden[nothing], weight, None, nothing, torch.zeros(0))
        torch.autograd.backward([logp, entropy], [torch.zeros(0), torch.zeros(0)])
        self.assertEqual(float(hidden.grad.abs().sum() + weight.grad.abs().sum()), 0)

    def test_frozen_head_is_given_no_gradient(self) -> None:
        hidden = self.hidden.clone().requires_grad_()
        logp, _ = Head(AT_A_TIME, torch.float32)(hidden, self.weight, None, self.targets, self.temperatures)
        logp.sum().backward()
        self.assertIsNone(self.weight.grad)
        self.assertGreater(float(hidden.grad.abs().sum()), 0)


if __name__ == "__main__":
    unittest.main()
