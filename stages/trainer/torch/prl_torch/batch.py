"""A micro-batch as tensors: views of the record's bytes, and what of them the model reads, on its device."""

import dataclasses
import functools
import io
import warnings
from dataclasses import dataclass

import fastavro
import torch
from torch import Tensor

# The tensors are views of bytes that nobody writes to.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


@dataclass
class Row:
    """Sequences one after the other, n tokens in all, of which w are in the loss.

    Indices are made on the host, so that no step of the loss has to ask the device how much there is.
    """

    lengths: tuple[int, ...]  # of the sequences
    starts: Tensor  # [sequences + 1] int32: where each begins, and n
    tokens: Tensor  # [n] int64
    positions: Tensor  # [n] int64, from 0 in every sequence
    rows: Tensor  # [w] int64: the tokens that predict those in the loss
    targets: Tensor  # [w] int64: the tokens in the loss
    sequence: Tensor  # [w] int64: which sequence each is in
    temperatures: Tensor  # [w] float32
    rl: Tensor  # int64: which of the w are in component rl
    ce: Tensor  # int64: in component ce
    ref_kl: Tensor  # int64: in component ref_kl
    policy: Tensor  # int64: in rl or ref_kl
    advantages: Tensor  # [w] float64
    sampled: Tensor  # [w] float64: log-probabilities under the policy that sampled
    ce_weights: Tensor  # [w] float64
    ref_kl_weights: Tensor  # [w] float64
    teacher: Tensor  # [w] float64: log-probabilities under the teacher

    def to(self, device: torch.device) -> "Row":
        """The row on a device; the copy of a pinned one goes on while the host does."""
        return self._map(lambda t: t.to(device, non_blocking=True))

    def pin(self) -> "Row":
        return self._map(Tensor.pin_memory)

    def _map(self, f) -> "Row":
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Row(**{name: f(v) if isinstance(v, Tensor) else v for name, v in values.items()})


@dataclass
class MicroBatch:
    """Sequences one after the other, n tokens in all; a dummy has none. What stands at i belongs to token i."""

    lengths: list[int]  # of the sequences
    tokens: Tensor  # [n] int32
    mask: Tensor  # [n] uint8: 1 = in component rl
    advantages: Tensor  # [n] float32, as are those below
    sampled: Tensor  # log-probabilities under the policy that sampled, after temperature
    temperatures: Tensor
    ce: Tensor  # weights; other than 0 in component ce
    ref_kl: Tensor  # weights; other than 0 in component ref_kl
    teacher: Tensor  # log-probabilities under the teacher

    @staticmethod
    def decode(schema: dict, record: bytes, pin: torch.device | None = None) -> "MicroBatch":
        """Reads the binary encoding of an Avro record MicroBatch; its row is made here, in pinned memory for the GPU pin."""
        fields = fastavro.schemaless_reader(io.BytesIO(record), schema)
        lengths = _view(fields["seq_lens"], torch.int32, 0).tolist()
        n = sum(lengths)
        names = ("advantages", "logprobs", "temperatures", "ce_weights", "ref_kl_weights", "ref_logprobs")
        tokens, mask = _view(fields["token_ids"], torch.int32, n), _view(fields["mask"], torch.uint8, n)
        batch = MicroBatch(lengths, tokens, mask, *(_view(fields[name], torch.float32, n) for name in names))
        for field in dataclasses.fields(batch)[1:]:
            if len(getattr(batch, field.name)) != n:
                raise ValueError(f"{field.name} has {len(getattr(batch, field.name))} entries, the sequences {n} tokens")
        row = batch.row
        if pin is not None:
            with torch.cuda.device(pin):  # in whatever thread
                batch.row = row.pin()
        return batch

    @functools.cached_property
    def row(self) -> Row:
        """What the model reads, on the host. A dummy's is two tokens that are not in the loss: a row of one would be compiled
        on its own."""
        lengths = self.lengths or [2]
        tokens = self.tokens.long() if self.lengths else torch.zeros(2, dtype=torch.int64)
        positions = torch.cat([torch.arange(n) for n in lengths])
        at = ((self.mask != 0) | (self.ce != 0) | (self.ref_kl != 0)).nonzero().squeeze(1)
        if (positions[at] == 0).any():
            raise ValueError("the first token of a sequence is in the loss, but nothing predicts it")
        rl, ce, ref_kl = self.mask[at] != 0, self.ce[at] != 0, self.ref_kl[at] != 0
        sizes = torch.tensor(lengths)
        return Row(
            lengths=tuple(lengths),
            starts=torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int(),
            tokens=tokens,
            positions=positions,
            rows=at - 1,
            targets=tokens[at],
            sequence=torch.repeat_interleave(sizes)[at],
            temperatures=self.temperatures[at],
            rl=rl.nonzero().squeeze(1),
            ce=ce.nonzero().squeeze(1),
            ref_kl=ref_kl.nonzero().squeeze(1),
            policy=(rl | ref_kl).nonzero().squeeze(1),
            advantages=self.advantages[at].double(),
            sampled=self.sampled[at].double(),
            ce_weights=self.ce[at].double(),
            ref_kl_weights=self.ref_kl[at].double(),
            teacher=self.teacher[at].double(),
        )


def _view(data: bytes, dtype: torch.dtype, n: int) -> Tensor:
    """A tensor over data; n zeros where there is none."""
    return torch.frombuffer(data, dtype=dtype) if data else torch.zeros(n, dtype=dtype)
