"""One update of the trained weights from their summed gradients: clipping, then AdamW or Muon.

All is done on the parts of parameters that this process holds; only Muon, which needs whole matrices, gathers them.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .options import Optimizer
from .parallel import Group, local, part, whole

# Of an optimizer whose state is offloaded, about so many elements are on the device at a time.
BUCKET = 1 << 26

# Muon's: arXiv:2502.16982 scales its updates to the size that AdamW's have, so that one learning rate serves both.
RMS = 0.2
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Updater:
    """The optimizer of some parameters, and their gradients, which are zero at first."""

    def __init__(self, params: dict[str, Tensor], hidden: set[str], settings: Optimizer, offload: bool, group: Group):
        """hidden names the matrices that Muon takes, if it is Muon; AdamW takes the rest."""
        self.params, self.settings, self.offload, self.group = params, settings, offload, group
        self.parts: dict[str, Tensor] = {}
        for name, p in params.items():
            p.grad = torch.zeros_like(p)
            self.parts[name] = torch.nn.Parameter(local(p))
            self.parts[name].grad = local(p.grad)
        self.moments = {name: ["momentum"] if settings.name == "muon" and name in hidden else ["exp_avg", "exp_avg_sq"] for name in params}
        self.state: dict[str, dict[str, Tensor]] = {}  # the moments of every parameter, where they are between updates
        self.adamw = [(self._adamw(names), names) for names in self._buckets()]
        self.restore(0)

    def _buckets(self) -> list[list[str]]:
        """What AdamW updates at a time: all, unless its state has to be brought first."""
        buckets: list[list[str]] = []
        size = 0
        for name, p in self.parts.items():
            if self.moments[name] == ["momentum"]:
                continue
            if not buckets or self.offload and size + p.numel() > BUCKET:
                buckets.append([])
                size = 0
            buckets[-1].append(name)
            size += p.numel()
        return buckets

    def _adamw(self, names: list[str]) -> torch.optim.AdamW:
        matrices = [self.parts[n] for n in names if self.params[n].dim() > 1]
        others = [self.parts[n] for n in names if self.params[n].dim() <= 1]
        groups = [{"params": matrices, "weight_decay": self.settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW([g for g in groups if g["params"]], betas=tuple(self.settings.betas), eps=self.settings.eps, fused=True)

    @torch.no_grad()
    def update(self, lr: float) -> tuple[bool, float]:
        """Updates the parameters and zeroes their gradients. Returns whether it did the first, which it does not where a
        gradient is not finite, and the norm of the gradient over all ranks, before clipping."""
        grads = [p.grad for p in self.parts.values()]
        squares = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) for g in grads]).square().sum()
        norm = math.sqrt(float(self.group.total(squares)))
        if applied := math.isfinite(norm):
            if 0 < self.settings.max_grad_norm < norm:
                torch._foreach_mul_(grads, self.settings.max_grad_norm / norm)
            self.steps += 1
            for optimizer, names in self.adamw:
                self._step(optimizer, names, lr)
            for name, moments in self.moments.items():
                if moments == ["momentum"]:
                    self._muon(name, lr)
        torch._foreach_zero_(grads)
        return applied, norm

    def _step(self, optimizer: torch.optim.AdamW, names: list[str], lr: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name in names:
            p = self.parts[name]
            optimizer.state[p] |= {k: t.to(p.device, non_blocking=True) for k, t in self.state[name].items()}
        optimizer.step()
        for name in names:
            of = optimizer.state[self.parts[name]]
            for k, t in self.state[name].items():
                self._keep(t, of[k])
                if self.offload:
                    del of[k]

    def _muon(self, name: str, lr: float) -> None:
        """The step of torch.optim.Muon, with Nesterov's momentum, on a part of a matrix."""
        p, like, kept = self.parts[name], self.params[name], self.state[name]["momentum"]
        momentum = kept.to(p.device, non_blocking=True)
        momentum.lerp_(p.grad, 1 - self.settings.momentum)
        direction = orthogonal(whole(p.grad.lerp(momentum, self.settings.momentum), like))
        p.mul_(1 - lr * self.settings.weight_decay)
        p.add_(part(direction, like), alpha=-lr * RMS * math.sqrt(max(like.shape)))
        self._keep(kept, momentum)

    def _keep(self, kept: Tensor, new: Tensor) -> None:
        if kept is not new:
            kept.copy_(new, non_blocking=True)

    def checkpoint(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The optimizer's state: the number of updates, and the moments of every parameter: name, the parameter it is like,
        this process's part."""
        step = torch.full((1,), float(self.steps))
        yield "step", step, step
        for name, p in self.params.items():
            for k, t in self.state[name].items():
                yield f"{k}.{name}", p, t.to(self.parts[name].device)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What checkpoint gives."""
        moments = {f"{k}.{name}": tuple(p.shape) for name, p in self.params.items() for k in self.moments[name]}
        return {"step": (1,), **moments}

    @torch.no_grad()
    def restore(self, steps: float, get: Callable[[str], Tensor] | None = None) -> None:
        """Replaces the state by one that checkpoint gave, of which get reads a tensor; without get by zeros."""
        self.steps = steps
        self.state = {name: {k: self._moment(name, k, get) for k in moments} for name, moments in self.moments.items()}
        for optimizer, names in self.adamw:
            for p in (self.parts[name] for name in names):
                optimizer.state[p] = {"step": torch.tensor(float(steps), device=p.device)}

    def _moment(self, name: str, k: str, get: Callable[[str], Tensor] | None) -> Tensor:
        p = self.parts[name]
        off = self.offload and p.is_cuda
        t = torch.zeros_like(p, device="cpu" if off else None, pin_memory=off)
        if get is not None:
            t.copy_(part(get(f"{k}.{name}").to(p.device), self.params[name]))
        return t


def orthogonal(m: Tensor) -> Tensor:
    """The nearest orthogonal matrix, about: Newton and Schulz's iteration in bfloat16, as torch.optim.Muon has it."""
    a, b, c = NEWTON_SCHULZ
    x = m.bfloat16()
    if tall := m.shape[0] > m.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
