"""A causal language model that learns: gradients summed over micro-batches, then one update of AdamW. float32, on the CPU.

Sequences of a micro-batch are packed into rows without padding; a sequence attends to itself only, and its positions start
at 0. Models whose layers do not keep packed sequences apart are refused when they are loaded.
"""

import math
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from .batch import MicroBatch
from .loss import Settings, Step, gradient

# Two sequences, packed and alone, must have logits that differ by no more.
PACKING_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Optimizer:
    """The settings of AdamW, under the names of [trainer]."""

    betas: tuple[float, float]
    eps: float
    weight_decay: float  # per unit of learning rate, on matrices only
    max_grad_norm: float  # the gradient is scaled down to this global norm; 0 is no limit


class Learner:
    def __init__(self, folder: str, settings: Settings, optimizer: Optimizer):
        """Loads the model of a Hugging Face folder: configuration and safetensors. No code that is in it runs."""
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        self.model.eval()  # without dropout: what is trained is the policy that sampled
        self.model.get_input_embeddings().padding_idx = None  # nothing is padded: a token that was sampled has its gradient
        self.settings, self.max_grad_norm = settings, optimizer.max_grad_norm
        self.params = dict(self.model.named_parameters())  # tied ones once
        for p in self.params.values():
            p.grad = torch.zeros_like(p)
        groups = [
            {"params": [p for p in self.params.values() if p.dim() > 1], "weight_decay": optimizer.weight_decay},
            {"params": [p for p in self.params.values() if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.adamw = torch.optim.AdamW([g for g in groups if g["params"]], betas=tuple(optimizer.betas), eps=optimizer.eps, fused=True)
        self._restore(0, {}, {})
        self._check_packing()

    @torch.no_grad()
    def _check_packing(self) -> None:
        one, two = torch.tensor([1, 2, 3, 4, 5, 6]), torch.tensor([6, 5, 4, 3, 2])
        one, two = one % self.model.config.vocab_size, two % self.model.config.vocab_size
        packed = self.logits(torch.cat([one, two]), torch.cat([torch.arange(6), torch.arange(5)]), torch.arange(11))
        alone = torch.cat([self.logits(one, torch.arange(6), torch.arange(6)), self.logits(two, torch.arange(5), torch.arange(5))])
        if not (difference := float((packed - alone).abs().max())) <= PACKING_TOLERANCE:
            raise ValueError(
                f"model type {self.model.config.model_type}: the logits of a packed sequence differ by {difference:.3g} from those "
                f"of the sequence alone; a model whose layers do not keep packed sequences apart cannot be trained"
            )

    def logits(self, tokens: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        """The logits [len(rows), vocabulary] of some rows of packed sequences [n]."""
        # Without a mask, positions that start over tell the model where a sequence begins.
        out = self.model(input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows)
        if out.logits.shape[:2] != (1, len(rows)):
            raise ValueError(f"model type {self.model.config.model_type}: logits have shape {tuple(out.logits.shape)} where {len(rows)} rows are wanted")
        return out.logits[0].float()

    def accumulate(self, batch: MicroBatch, step: Step) -> dict[str, float]:
        """Adds the gradient of the loss over a micro-batch to the sum. Returns the figures of the batch."""
        total: dict[str, float] = {}
        for chunk in batch.chunks():
            scaled = self.logits(chunk.tokens, chunk.positions, chunk.rows) / chunk.temperatures[:, None]
            log_p = scaled.log_softmax(-1)
            logp = log_p.gather(1, chunk.targets[:, None])[:, 0]
            entropy = -(log_p.exp() * log_p).sum(-1)
            d_logp, d_entropy, figures = gradient(self.settings, step, chunk, logp.detach().double(), entropy.detach().double())
            torch.autograd.backward([logp, entropy], [d_logp.float(), d_entropy.float()])
            for name, value in figures.items():
                total[name] = total.get(name, 0.0) + value
        return total

    @torch.no_grad()
    def update(self, lr: float) -> tuple[bool, float]:
        """Updates the weights by the gradient summed since the last update. Returns whether it did, which it does not
        where the gradient is not finite, and the gradient's norm before clipping."""
        grads = [p.grad for p in self.params.values()]
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
        applied = math.isfinite(norm)
        if applied:
            if self.max_grad_norm > 0 and norm > self.max_grad_norm:
                torch._foreach_mul_(grads, self.max_grad_norm / norm)
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=False)
        return applied, norm

    def weights(self) -> bytes:
        """The weights as safetensors, tied ones once."""
        return safetensors.torch.save({name: p.detach().contiguous() for name, p in self.params.items()})

    @torch.no_grad()
    def load(self, data: bytes) -> None:
        """Replaces the weights by those that weights gave."""
        given = safetensors.torch.load(data)
        self._check(given, "")
        for name, p in self.params.items():
            p.copy_(given[name])

    def checkpoint(self) -> bytes:
        """The optimizer's state as safetensors: the number of updates and both moments of every parameter."""
        state = {"step": torch.zeros(1)}
        for name, p in self.params.items():
            of = self.adamw.state[p]
            state["step"] = of["step"].float().reshape(1)
            state["exp_avg." + name], state["exp_avg_sq." + name] = of["exp_avg"].contiguous(), of["exp_avg_sq"].contiguous()
        return safetensors.torch.save(state)

    def restore(self, data: bytes) -> None:
        """Replaces the optimizer's state by one that checkpoint gave."""
        given = safetensors.torch.load(data)
        step = given.pop("step", torch.zeros(0))
        if step.shape != (1,) or not step.item() >= 0:
            raise ValueError("the state of an optimizer has no count of updates")
        average = {k.removeprefix("exp_avg."): v for k, v in given.items() if k.startswith("exp_avg.")}
        square = {k.removeprefix("exp_avg_sq."): v for k, v in given.items() if k.startswith("exp_avg_sq.")}
        self._check(average, "exp_avg.")
        self._check(square, "exp_avg_sq.")
        self._restore(step.item(), average, square)

    @torch.no_grad()
    def _restore(self, step: float, average: dict[str, Tensor], square: dict[str, Tensor]) -> None:
        for name, p in self.params.items():
            self.adamw.state[p] = {
                "step": torch.tensor(float(step)),
                "exp_avg": average[name].clone() if average else torch.zeros_like(p),
                "exp_avg_sq": square[name].clone() if square else torch.zeros_like(p),
            }

    def _check(self, given: dict[str, Tensor], prefix: str) -> None:
        want = {name: tuple(p.shape) for name, p in self.params.items()}
        got = {name: tuple(t.shape) for name, t in given.items()}
        for name in sorted(want.keys() | got.keys()):
            if want.get(name) != got.get(name):
                raise ValueError(f"tensor {prefix}{name} has shape {got.get(name)}, the model's has {want.get(name)} (None: there is no such tensor)")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: on the CPU PyTorch has no type for it."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "not enough memory" in str(error) or "can't allocate memory" in str(error)
