"""What a process has computed: tokens, operations, memory."""

import resource

import torch
from torch import nn

# Products in bfloat16 of dense matrices, per second at best, by a part of the device's name (NVIDIA's data sheets).
PEAK = {"H200": 989e12, "H100": 989e12, "GH200": 989e12, "B200": 2250e12, "A100": 312e12}


class Work:
    """Counts the floating-point operations that the model asks for, not those that recomputation adds:

        2·n·(layers' parameters) + 2·w·(head's parameters) + 2·layers·heads·head_dim·Σ length²      (causal: half of 4·…)

    for the forward pass over n tokens, w of them in the loss; twice that for the backward pass, once where parameters are
    frozen (lora) and only what comes before them needs a gradient. In a mixture of experts all of them count.
    """

    def __init__(self, model: nn.Module, layers: nn.ModuleList, device: torch.device, dtype: torch.dtype):
        """model before it is sharded."""
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.attention = 2 * len(layers) * heads * width
        head = list(model.get_output_embeddings().parameters())
        self.layers, self.head = _passes(list(layers.parameters())), _passes(head)
        self.device = device
        self.peak = 0.0
        if device.type == "cuda" and dtype == torch.bfloat16:
            name = torch.cuda.get_device_name(device)
            self.peak = next((v for part, v in PEAK.items() if part in name), 0.0)
        self.tokens = self.flops = 0

    def add(self, lengths: list[int], in_loss: int) -> None:
        n = sum(lengths)
        self.tokens += n
        self.flops += self.layers * n + self.head * in_loss + 3 * self.attention * sum(k * k for k in lengths)

    def report(self) -> dict[str, float]:
        report = {"tokens": self.tokens, "flops": self.flops, "memory": self._memory(), "flops_per_second": self.peak}
        self.tokens = self.flops = 0
        return report

    def _memory(self) -> int:
        if self.device.type != "cuda":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak


def _passes(parameters: list[nn.Parameter]) -> int:
    """Operations per token of both passes: 6 for a parameter, 4 for a frozen one."""
    return sum((6 if p.requires_grad else 4) * p.numel() for p in parameters)
