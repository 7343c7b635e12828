"""Messages on a pipe: a head of JSON and a body of bytes, either way.

    u32 length of the head | u64 length of the body | head | body          (little-endian)

Nothing on the pipe is ever executed or unpickled.
"""

import json
import struct
from typing import Any, BinaryIO

PREFIX = struct.Struct("<IQ")


def read(pipe: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Reads the next message; None at the end of the pipe."""
    prefix = pipe.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    head, body = PREFIX.unpack(prefix)
    return json.loads(pipe.read(head)), pipe.read(body)


def write(pipe: BinaryIO, head: dict[str, Any], body: bytes = b"") -> None:
    text = json.dumps(head).encode()
    pipe.write(PREFIX.pack(len(text), len(body)))
    pipe.write(text)
    pipe.write(body)
    pipe.flush()
