"""The loss of a step, as stages/internal/lm has it: a sum of components, each over its own tokens and divided by their
number in the whole step.

With π and μ the log-probabilities of a token under the policy and under the one that sampled it, A its advantage, r = π − μ,
ρ = e^r, d = e^π − e^μ, H the entropy and w a weight:

    rl      Σ [ policy term + kl_tau·r² − entropy_coef·H ]
    ce      Σ −w·π
    ref_kl  Σ w·[ −keep·g·ρ + kl_tau·r² ],  g = π_teacher − π as a constant, keep = 0 where d < −ref_kl_mask_low

Derivatives by π and H are written out, in float64: a token beyond a bound has exactly none, whatever its ρ.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import Row


@dataclass(frozen=True)
class Settings:
    """The bounds and weights of [trainer], under the same names."""

    loss: str
    kl_tau: float
    dppo_mask_high: float
    dppo_mask_low: float
    ipo_mask: float
    ppo_clip_low: float
    ppo_clip_high: float
    gspo_clip_low: float
    gspo_clip_high: float
    tis_cap: float
    ref_kl_mask_low: float


@dataclass(frozen=True)
class Step:
    """What the micro-batches of a step share."""

    entropy_coef: float
    rl_tokens: int
    ce_tokens: int
    ref_kl_tokens: int


def gradient(settings: Settings, step: Step, row: Row, logp: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor, dict[str, int | Tensor]]:
    """The derivatives of the loss by log-probabilities and entropies, all [w] float64, and the row's figures: sums over
    tokens, of which the losses are divided already; counts, and numbers that are still on the device."""
    d_logp, d_entropy = torch.zeros_like(logp), torch.zeros_like(entropy)
    on = row.policy
    figures = {"tokens": len(logp), "sampled": len(on), "nll": -logp[on].sum(), "entropy": entropy[on].sum()}
    figures |= _rl(settings, step, row, logp, entropy, d_logp, d_entropy)
    figures |= _ce(step, row, logp, d_logp)
    figures |= _ref_kl(settings, step, row, logp, d_logp)
    return d_logp, d_entropy, figures


def _rl(settings: Settings, step: Step, row: Row, logp: Tensor, entropy: Tensor, d_logp: Tensor, d_entropy: Tensor) -> dict:
    on, n = row.rl, max(step.rl_tokens, 1)
    mu, adv, pi = row.sampled[on], row.advantages[on], logp[on]
    r = pi - mu
    ratio = r.exp()
    whole = _whole_ratio(row.sequence[on], len(row.lengths), r)
    term, d_term, beyond = _policy_term(settings, adv, pi, mu, ratio, whole)
    d_logp[on] += (2 * settings.kl_tau * r + d_term) / n
    d_entropy[on] -= step.entropy_coef / n
    kl = ratio - r - 1
    return {
        "rl_tokens": len(on),
        "rl_loss": ((settings.kl_tau * r * r - step.entropy_coef * entropy[on] + term) / n).sum(),
        "ratio": ratio.sum(),
        "mismatch_kl": torch.where(beyond == 0, kl, 0).sum(),
        "masked_kl": torch.where(beyond != 0, kl, 0).sum(),
        "masked_high": (beyond > 0).sum(),
        "masked_low": (beyond < 0).sum(),
    }


def _whole_ratio(sequence: Tensor, sequences: int, r: Tensor) -> Tensor:
    """For every token the geometric mean of ρ over those of its sequence."""
    total, count = r.new_zeros(sequences), r.new_zeros(sequences)
    total.index_add_(0, sequence, r)
    count.index_add_(0, sequence, torch.ones_like(r))
    return (total / count.clamp(min=1)).exp()[sequence]


def _policy_term(s: Settings, adv: Tensor, logp: Tensor, mu: Tensor, ratio: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The policy term, its derivative by π, and 1 or −1 where a token lies beyond the upper or lower bound."""
    d = logp.exp() - mu.exp()
    match s.loss:
        case "dppo":  # arXiv:2602.04879
            return _masked(adv, ratio, (adv > 0) & (d > s.dppo_mask_high), (adv <= 0) & (d < -s.dppo_mask_low))
        case "ipo":
            return _masked(adv, ratio, d > s.ipo_mask, d < -s.ipo_mask)
        case "ppo":  # arXiv:1707.06347
            return _clipped(adv, ratio, s.ppo_clip_low, s.ppo_clip_high)
        case "gspo":  # arXiv:2507.18071, section 4.3
            return _clipped(adv, whole, s.gspo_clip_low, s.gspo_clip_high)
        case "tis":  # arXiv:2505.24034
            weight = ratio.clamp(max=s.tis_cap)
            return -adv * weight * logp, -adv * weight, (ratio > s.tis_cap).int()
    raise ValueError(f"loss {s.loss!r} is not one that this worker knows")


def _masked(adv: Tensor, ratio: Tensor, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    term = torch.where(high | low, 0, -adv * ratio)
    return term, term, high.int() - low.int()


def _clipped(adv: Tensor, ratio: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor, Tensor]:
    high, low = (adv > 0) & (ratio > 1 + clip_high), (adv < 0) & (ratio < 1 - clip_low)
    bound = torch.where(high, 1 + clip_high, 1 - clip_low)
    return -adv * torch.where(high | low, bound, ratio), torch.where(high | low, 0, -adv * ratio), high.int() - low.int()


def _ce(step: Step, row: Row, logp: Tensor, d_logp: Tensor) -> dict:
    on, n = row.ce, max(step.ce_tokens, 1)
    w, pi = row.ce_weights[on], logp[on]
    d_logp[on] -= w / n
    return {"ce_tokens": len(on), "ce_loss": (-w * pi / n).sum(), "ce_nll": -pi.sum()}


def _ref_kl(settings: Settings, step: Step, row: Row, logp: Tensor, d_logp: Tensor) -> dict:
    on, n = row.ref_kl, max(step.ref_kl_tokens, 1)
    w, mu, pi = row.ref_kl_weights[on], row.sampled[on], logp[on]
    gain, r = row.teacher[on] - pi, pi - mu
    pull = torch.where(pi.exp() - mu.exp() < -settings.ref_kl_mask_low, 0, -gain * r.exp())
    d_logp[on] += w * (2 * settings.kl_tau * r + pull) / n
    return {
        "ref_kl_tokens": len(on),
        "ref_kl_loss": (w * (settings.kl_tau * r * r + pull) / n).sum(),
        "teacher_kl": -gain.sum(),
    }
