"""A micro-batch as tensors: views of the record's bytes, cut into chunks of whole sequences."""

import dataclasses
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import fastavro
import torch
from torch import Tensor

# The tensors are views of bytes that nobody writes to.
warnings.filterwarnings("ignore", message="The given buffer is not writable")

# A chunk has at most this many tokens, unless one sequence is longer: logits and attention masks exist for one chunk only.
CHUNK_TOKENS = 1024


@dataclass
class Chunk:
    """Sequences one after the other, n tokens in all, of which w are in the loss."""

    tokens: Tensor  # [n] int64
    positions: Tensor  # [n] int64, from 0 in every sequence
    rows: Tensor  # [w] int64: the tokens that predict those in the loss
    targets: Tensor  # [w] int64: the tokens in the loss
    sequence: Tensor  # [w] int64: which sequence each is in
    temperatures: Tensor  # [w] float32
    mask: Tensor  # [w] bool: in component rl
    advantages: Tensor  # [w] float64
    sampled: Tensor  # [w] float64: log-probabilities under the policy that sampled
    ce: Tensor  # [w] float64: weights; other than 0 in component ce
    ref_kl: Tensor  # [w] float64: weights; other than 0 in component ref_kl
    teacher: Tensor  # [w] float64: log-probabilities under the teacher


@dataclass
class MicroBatch:
    """Sequences one after the other, n tokens in all. What stands at i belongs to token i."""

    lengths: list[int]  # of the sequences
    tokens: Tensor  # [n] int32
    mask: Tensor  # [n] uint8: 1 = in component rl
    advantages: Tensor  # [n] float32, as are those below
    sampled: Tensor  # log-probabilities under the policy that sampled, after temperature
    temperatures: Tensor
    ce: Tensor
    ref_kl: Tensor
    teacher: Tensor

    @staticmethod
    def decode(schema: dict, record: bytes) -> "MicroBatch":
        """Reads the binary encoding of an Avro record MicroBatch."""
        fields = fastavro.schemaless_reader(io.BytesIO(record), schema)
        lengths = _view(fields["seq_lens"], torch.int32, 0).tolist()
        n = sum(lengths)
        names = ("advantages", "logprobs", "temperatures", "ce_weights", "ref_kl_weights", "ref_logprobs")
        tokens, mask = _view(fields["token_ids"], torch.int32, n), _view(fields["mask"], torch.uint8, n)
        batch = MicroBatch(lengths, tokens, mask, *(_view(fields[name], torch.float32, n) for name in names))
        for field in dataclasses.fields(batch)[1:]:
            if len(getattr(batch, field.name)) != n:
                raise ValueError(f"{field.name} has {len(getattr(batch, field.name))} entries, the sequences {n} tokens")
        return batch

    def chunks(self) -> Iterator[Chunk]:
        """Cuts the batch; a chunk without a token in the loss is left out."""
        first = start = tokens = 0
        for i, length in enumerate(self.lengths):
            if tokens > 0 and tokens + length > CHUNK_TOKENS:
                yield from self._chunk(self.lengths[first:i], start)
                first, start, tokens = i, start + tokens, 0
            tokens += length
        if tokens > 0:
            yield from self._chunk(self.lengths[first:], start)

    def _chunk(self, lengths: list[int], start: int) -> Iterator[Chunk]:
        cut = slice(start, start + sum(lengths))
        in_loss = (self.mask[cut] != 0) | (self.ce[cut] != 0) | (self.ref_kl[cut] != 0)
        at = in_loss.nonzero().squeeze(1)
        if len(at) == 0:
            return
        tokens = self.tokens[cut].long()
        positions = torch.cat([torch.arange(n) for n in lengths])
        if (positions[at] == 0).any():
            raise ValueError("the first token of a sequence is in the loss, but nothing predicts it")
        yield Chunk(
            tokens=tokens,
            positions=positions,
            rows=at - 1,
            targets=tokens[at],
            sequence=torch.repeat_interleave(torch.tensor(lengths))[at],
            temperatures=self.temperatures[cut][at],
            mask=self.mask[cut][at] != 0,
            advantages=self.advantages[cut][at].double(),
            sampled=self.sampled[cut][at].double(),
            ce=self.ce[cut][at].double(),
            ref_kl=self.ref_kl[cut][at].double(),
            teacher=self.teacher[cut][at].double(),
        )


def _view(data: bytes, dtype: torch.dtype, n: int) -> Tensor:
    """A tensor over data; n zeros where there is none."""
    return torch.frombuffer(data, dtype=dtype) if data else torch.zeros(n, dtype=dtype)
