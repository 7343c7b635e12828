"""Files of tensors, in safetensors' format: copied from a device first, written and summed later by whoever has the time."""

import hashlib
import json
import os
import struct
from collections.abc import Callable

import safetensors
import torch
from torch import Tensor

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class Snapshot:
    """A copy of tensors on the host. Calling it writes them, in any thread."""

    def __init__(self, metadata: dict[str, str] | None = None):
        self.metadata = metadata
        self.tensors: dict[str, Tensor] = {}
        self.copied: torch.cuda.Event | None = None

    def add(self, name: str, t: Tensor) -> None:
        """Copies a tensor; from a GPU the copy goes on while the host does, before whatever the GPU is given after it."""
        host = torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda)
        self.tensors[name] = host.copy_(t.detach(), non_blocking=True)
        if t.is_cuda:
            self.copied = self.copied or torch.cuda.Event()
            self.copied.record()

    def __call__(self, path: str) -> tuple[int, str]:
        """Writes the file, whole or not at all. Returns its size in bytes and its SHA-256 in hex."""
        if self.copied is not None:
            self.copied.synchronize()
        temp = f"{path}.{os.getpid()}.tmp"
        total = hashlib.sha256()
        try:
            with open(temp, "wb") as f:
                for part in self._parts():
                    total.update(part)
                    f.write(part)
                size = f.tell()
                f.flush()
                os.fsync(f.fileno())
            os.replace(temp, path)
        finally:
            if os.path.exists(temp):
                os.remove(temp)
        return size, total.hexdigest()

    def _parts(self):
        """The bytes that safetensors' own writer makes of them: by names, where all are of one type."""
        head: dict = {"__metadata__": self.metadata} if self.metadata else {}
        at, order = 0, sorted(self.tensors, key=lambda name: (-self.tensors[name].itemsize, name))
        for name in order:
            t = self.tensors[name]
            head[name] = {"dtype": TYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
            at += t.nbytes
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        yield struct.pack("<Q", len(text)) + text
        for name in order:
            yield memoryview(self.tensors[name].reshape(-1).view(torch.uint8).numpy())


def read(path: str, want: dict[str, tuple[int, ...]]) -> Callable[[str], Tensor]:
    """What gives the tensors of a file by name; those in it have just the wanted shapes."""
    file = safetensors.safe_open(path, "pt", device="cpu")
    got = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    for name in sorted(want.keys() | got.keys()):
        if want.get(name) != got.get(name):
            raise ValueError(f"tensor {name} has shape {got.get(name)}, the model's has {want.get(name)} (None: there is no such tensor)")
    return file.get_tensor
