"""A causal language model of transformers as a policy: from a packed row to log-probabilities and entropies."""

import functools

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from . import attention, lora
from .attention import Packing
from .batch import MicroBatch, Row
from .head import Head
from .options import Options

# Two sequences, packed and alone, must have logits that differ by no more, relative to the largest where that is above 1.
PACKING_TOLERANCE = 1e-4

# The log-probabilities of a row, as they are computed and in float32 on the host, may differ by so much of their spread.
DEVICE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}

# With fewer parameters, threads of the CPU wait for each other longer than they work.
ONE_THREAD = 1 << 21

# Lengths of two sequences that a new policy is tried on: kernels have other ways for those below 128.
PROBE = (140, 60)


def probe(config) -> Row:
    """Two sequences that config allows, of which all tokens but the first are in the loss."""
    lengths = [min(n, getattr(config, "max_position_embeddings", None) or n) for n in PROBE]
    tokens = torch.cat([torch.arange(1, lengths[0] + 1), torch.arange(lengths[1], 0, -1)]).int() % config.vocab_size
    mask = torch.cat([torch.arange(n) > 0 for n in lengths]).to(torch.uint8)
    zeros = torch.zeros(len(tokens))
    return MicroBatch(lengths, tokens, mask, zeros, zeros, torch.ones(len(tokens)), zeros, zeros, zeros).row


class Policy(nn.Module):
    """A model on the host, in float32, whose sequences are packed without padding: each attends to itself only."""

    def __init__(self, folder: str, options: Options, device: torch.device):
        """Loads the model of a Hugging Face folder: configuration and safetensors. No code that is in it runs."""
        super().__init__()
        self.model: PreTrainedModel
        self.model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        if missing := sorted(loading["missing_keys"]):  # of which transformers has made up random ones
            raise ValueError(f"model type {self.model.config.model_type}: its files lack {len(missing)} tensors, {missing[0]} for instance")
        if device.type == "cpu" and self.model.num_parameters() < ONE_THREAD:
            torch.set_num_threads(1)
        self.model.eval()  # without dropout: what is trained is the policy that sampled
        self.model.get_input_embeddings().padding_idx = None  # nothing is padded: a token that was sampled has its gradient
        self.dtype, self.kernel, self.head = torch.float32, "sdpa", Head(options.head_tokens, torch.float32)
        self.probe = probe(self.model.config.get_text_config())
        self._check_packing()
        with torch.no_grad():
            self.probed = self(self.probe)[0]
        self.adapter_config = lora.inject(self.model, options.lora) if options.lora is not None else None
        self.dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
        self.kernel = options.kernel(device)
        attention.prepare(self.kernel, options.compile)
        self.head = Head(options.head_tokens, self.dtype, options.compile)
        for layer in self.layers():
            if options.activation_checkpointing:
                layer.forward = functools.partial(_checkpointed, layer.forward)
            if options.compile:
                layer.forward = torch.compile(layer.forward, dynamic=True)

    def layers(self) -> nn.ModuleList:
        """The decoder's layers."""
        lists = [m for m in self.model.get_decoder().children() if isinstance(m, nn.ModuleList)]
        if not lists:
            raise ValueError(f"model type {self.model.config.model_type}: its decoder has no list of layers")
        return max(lists, key=len)

    def names(self) -> dict[str, str]:
        """The names that parameters have in the model's files, where inference servers look for them."""
        names = {}
        for name, p in self.model.named_parameters():
            filed = revert_weight_conversion(self.model, {name: torch.empty(p.shape, device="meta")})
            if [t.shape for t in filed.values()] != [p.shape]:
                raise ValueError(
                    f"model type {self.model.config.model_type}: {name} is several tensors in the model's files, as the weights of experts are; "
                    f"to train them is not supported: train an adapter (trainer.torch.lora)"
                )
            names[name] = next(iter(filed))
        return names

    def forward(self, row: Row) -> tuple[Tensor, Tensor]:
        """Of the tokens in the loss the log-probabilities and the entropies they were drawn from, both [w] float32."""
        head = self.model.get_output_embeddings()
        hidden = self._hidden(row.tokens, row.positions, Packing(row.lengths, row.starts, max(row.lengths), self.kernel))
        return self.head(hidden[row.rows], head.weight, getattr(head, "bias", None), row.targets, row.temperatures)

    def logits(self, tokens: Tensor, lengths: list[int]) -> Tensor:
        """The logits [n, vocabulary] of packed sequences: tokens [n]."""
        return self._logits(tokens, lengths)[0]

    def _logits(self, tokens: Tensor, lengths: list[int]) -> tuple[Tensor, list[int]]:
        head = self.model.get_output_embeddings()
        positions = torch.cat([torch.arange(n, device=tokens.device) for n in lengths])
        starts = torch.tensor([0, *lengths], device=tokens.device).cumsum(0).int()
        packing = Packing(tuple(lengths), starts, max(lengths), self.kernel)
        hidden = self._hidden(tokens, positions, packing)
        return self.head.logits(hidden.to(self.head.dtype), head.weight.to(self.head.dtype), getattr(head, "bias", None)), packing.windows

    def _hidden(self, tokens: Tensor, positions: Tensor, packing: Packing) -> Tensor:
        """The states [n, width] that the head reads."""
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            out = self.model.get_decoder()(input_ids=tokens[None], position_ids=positions[None], use_cache=False, packing=packing)
        return out.last_hidden_state[0]

    @torch.no_grad()
    def check_device(self, device: torch.device) -> None:
        """Holds the policy as it will be computed, on its device, sharded and compiled, against what float32 on the host
        gave; every rank calls it."""
        got, want = self(self.probe.to(device))[0].cpu(), self.probed
        spread = (want - want.mean()).norm() + 1e-3 * want.norm()  # of a new model's, far below their size
        if not (error := float((got - want).norm() / spread)) <= (limit := DEVICE_TOLERANCE[self.dtype]):
            raise ValueError(
                f"model type {self.model.config.model_type}: in {self.dtype} on {device} with attention {self.kernel} its "
                f"log-probabilities are off by {error:.2g} of the spread they have in float32 on the CPU, more than {limit}"
            )

    @torch.no_grad()
    def _check_packing(self) -> None:
        """Holds the logits of two sequences in a row against those that the model itself has for each alone."""
        kind, config, lengths = self.model.config.model_type, self.model.config.get_text_config(), list(self.probe.lengths)
        if by_length := _rope_types(config) & {"dynamic", "longrope"}:
            raise ValueError(f"model type {kind}: rotary embeddings of type {by_length.pop()} depend on the longest sequence of a row; not supported")
        alone = torch.cat([self.model(t[None], use_cache=False).logits[0].float() for t in self.probe.tokens.split(lengths)])
        self.model.set_attn_implementation(attention.NAME)
        try:
            packed, windows = self._logits(self.probe.tokens, lengths)
        except Exception as error:
            raise ValueError(f"model type {kind}: {error}; a model that does not take its attention from transformers' registry cannot be trained") from error
        if packed.shape != alone.shape or not (difference := float((packed - alone).abs().max())) <= PACKING_TOLERANCE * max(1, float(alone.abs().max())):
            by = f"by {difference:.3g} " if packed.shape == alone.shape else ""
            raise ValueError(
                f"model type {kind}: the logits of a packed sequence differ {by}from those of the sequence alone; a model whose "
                f"layers do not keep packed sequences apart, or whose head is more than a linear layer, cannot be trained"
            )
        if len(windows) != (want := _windows(config)):
            raise ValueError(f"model type {kind}: {want} layers have a sliding window, of which attention is told of {len(windows)}")


def _rope_types(config) -> set[str]:
    """How positions are turned into angles: by one rule, or by one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {of["rope_type"] for of in (rope, *rope.values()) if isinstance(of, dict) and "rope_type" in of}


def _windows(config) -> int:
    """How many layers attend within a window."""
    types = getattr(config, "layer_types", None) or []
    if "chunked_attention" in types:
        raise ValueError(f"model type {config.model_type}: attention within chunks is not supported")
    if types:
        return types.count("sliding_attention")
    on = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return config.num_hidden_layers if on else 0


def _checkpointed(forward, *args, **kwargs):
    """A layer's forward pass that keeps attention's results, which cost the most, and makes all else again."""
    return checkpoint(forward, *args, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, _keep), **kwargs)


# Attention, in whatever form.
KEPT = {
    "torch_attn::_varlen_attn",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
}


def _keep(ctx, op, *args, **kwargs) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op._schema.name in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
