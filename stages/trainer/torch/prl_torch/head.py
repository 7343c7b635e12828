"""The head of a language model and the softmax over its vocabulary, without ever holding the logits of a whole row.

Hidden states are taken a few at a time: their logits exist while their log-probabilities and entropies are computed, and once
more in the backward pass, which makes them again.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class Head:
    """Log-probabilities of tokens and entropies of the distributions they are from, tokens at a time."""

    def __init__(self, tokens: int, dtype: torch.dtype, compiled: bool = False):
        self.tokens, self.dtype = tokens, dtype  # of the products' factors; sums and logits are in float32
        self.logits: Callable = logits
        wrap = torch.compile(dynamic=True) if compiled else (lambda f: f)
        self.forward, self.backward = wrap(statistics), wrap(slope)

    def __call__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [w, width], weight [vocabulary, width], bias [vocabulary], targets [w] int64, temperatures [w]; gives two
        times [w] float32: log-probabilities of the targets, entropies in nats. Logits are divided by the temperature."""
        return _Head.apply(self, hidden, weight, bias, targets, temperatures)


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, head: Head, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor):
        w = weight.to(head.dtype)
        logp, entropy, total = (hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3))
        for at in _cuts(len(hidden), head.tokens):
            z = head.logits(hidden[at].to(head.dtype), w, bias)
            logp[at], entropy[at], total[at] = head.forward(z, targets[at], temperatures[at])
        ctx.save_for_backward(hidden, weight, bias, targets, temperatures, entropy, total)
        ctx.head = head
        return logp, entropy

    @staticmethod
    def backward(ctx, d_logp: Tensor, d_entropy: Tensor):
        head: Head = ctx.head
        hidden, weight, bias, targets, temperatures, entropy, total = ctx.saved_tensors
        w = weight.to(head.dtype)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if ctx.needs_input_grad[3] else None
        for at in _cuts(len(hidden), head.tokens):
            h = hidden[at].to(head.dtype)
            dz = head.backward(head.logits(h, w, bias), targets[at], temperatures[at], entropy[at], total[at], d_logp[at], d_entropy[at])
            if d_bias is not None:
                d_bias += dz.sum(0)
            dz = dz.to(head.dtype)
            d_hidden[at] = dz @ w
            if d_weight is not None:
                d_weight += product(dz.T, h)
        given = (d.to(like.dtype) if d is not None else None for d, like in ((d_weight, weight), (d_bias, bias)))
        return None, d_hidden, *given, None, None


def _cuts(n: int, size: int) -> list[slice]:
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32, whatever the factors are in: rounded to bfloat16, a logit of 20 would be off by up to 0.06."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[w, vocabulary] float32."""
    z = product(hidden, weight.T)
    return z if bias is None else z + bias


def statistics(z: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the targets, entropies, and the logarithms of the sums of exponentials, all [w]."""
    z = z / temperatures[:, None]
    total = z.logsumexp(-1)
    log_p = z - total[:, None]
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(1, targets[:, None])[:, 0], entropy, total


def slope(z: Tensor, targets: Tensor, temperatures: Tensor, entropy: Tensor, total: Tensor, d_logp: Tensor, d_entropy: Tensor) -> Tensor:
    """The derivative by the logits: that of log p_t is [j = t] − p_j, that of the entropy H is −p_j·(log p_j + H)."""
    log_p = z / temperatures[:, None] - total[:, None]
    p = log_p.exp()
    dz = -p * (d_logp[:, None] + d_entropy[:, None] * (log_p + entropy[:, None]))
    dz = dz.scatter_add(1, targets[:, None], d_logp[:, None])
    return dz / temperatures[:, None]
