"""Attention within each sequence of a packed row, for any model of transformers that asks its registry for attention.

No mask over the row is ever made: on a GPU, in bfloat16, one kernel takes where the sequences begin; elsewhere each sequence
is a call of scaled_dot_product_attention.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "prl_packed"  # in transformers' registry


@dataclass
class Packing:
    """How a row is packed, and the kernel to use: varlen or sdpa."""

    lengths: tuple[int, ...]
    starts: Tensor  # [sequences + 1] int32, on the row's device
    longest: int
    kernel: str = "sdpa"
    windows: list[int] = field(default_factory=list)  # those that sdpa was asked for, a layer's each


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **other,
) -> tuple[Tensor, None]:
    """Attention of [1, heads, n, width] to earlier tokens of the same sequence, the last sliding_window of them where one
    is given: [1, n, heads, width]."""
    if packing is None:
        raise ValueError("the model does not tell its attention how the row is packed")
    for name in ("softcap", "s_aux", "position_bias"):
        if other.get(name) is not None:
            raise ValueError(f"attention with {name} is not supported")
    if attention_mask is not None or not other.get("is_causal", True) or not getattr(module, "is_causal", True):
        raise ValueError("attention that is not just causal is not supported")
    return KERNELS[packing.kernel](query, key, value, scaling, sliding_window, packing), None


AttentionInterface.register(NAME, attention)


def prepare(kernel: str, compiled: bool) -> None:
    """Makes a kernel ready, inside of compiled layers if they are: what either needs is slow to import."""
    if kernel == "varlen":
        from torch.nn.attention.varlen import varlen_attn

        KERNELS[kernel] = functools.partial(_varlen, varlen_attn=varlen_attn)
    elif compiled:
        KERNELS[kernel] = torch.compiler.disable(_each)


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, packing: Packing, varlen_attn: Callable
) -> Tensor:
    dtype = torch.get_autocast_dtype(query.device.type)  # what was normalised or turned is in float32
    q, k, v = (t[0].transpose(0, 1).to(dtype) for t in (query, key, value))  # [n, heads, width]
    bounds = (-1 if window is None else window - 1, 0)
    starts, longest = packing.starts, packing.longest
    return varlen_attn(q, k, v, starts, starts, longest, longest, scale=scaling, window_size=bounds, enable_gqa=True)[None]


def _each(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, packing: Packing) -> Tensor:
    if window is not None:
        packing.windows.append(window)
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (t.to(torch.get_autocast_dtype(query.device.type)) for t in (query, key, value))
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, 1) if group > 1 else t for t in (key, value))
    parts = []
    for q, k, v in zip(*(t.split(packing.lengths, 2) for t in (query, key, value)), strict=True):
        n = q.shape[2]
        if window is None or n <= window:
            parts.append(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling))
        else:
            at = torch.arange(n, device=q.device)
            back = at[:, None] - at
            parts.append(scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < window), scale=scaling))
    return torch.cat(parts, 2).transpose(1, 2)


KERNELS: dict[str, Callable[..., Tensor]] = {"sdpa": _each}
