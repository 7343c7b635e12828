"""A class whose tools break things, each in its own way."""

import os
import signal
import subprocess
import sys
import time

while os.environ.get("FAULTY_IMPORT") == "hangs":
    time.sleep(60)


class Faulty:
    kept = []

    def reset(self, start="well", **row):
        if start == "raise":
            raise RuntimeError("the service is down")
        if start == "silent":
            return None
        self.reward, self.done = 0.25, False
        return f"Break something, {row.get('who', 'you')}."

    def noop(self, word: str = "") -> str:
        """Say ok."""
        return "ok " + word

    def variable(self, name: str) -> str:
        """A variable of the environment."""
        return os.environ.get(name, "none")

    def pid(self) -> str:
        """The number of the process."""
        return str(os.getpid())

    def stubborn_child(self) -> str:
        """Start a process that leaves the group."""
        return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)

    def child(self) -> str:
        """Start a process."""
        return str(subprocess.Popen(["sleep", "600"]).pid)

    def raises(self) -> str:
        """Raise an exception."""
        raise KeyError("no such key")

    def leave(self) -> str:
        """Exit."""
        sys.exit(3)

    def hang(self) -> str:
        """Hang."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("it hangs")
        self._wait_for_ever()

    def _wait_for_ever(self):
        while True:
            time.sleep(60)

    def leak(self) -> str:
        """Take all memory."""
        while True:
            Faulty.kept.append(bytearray(1 << 20))

    def flood(self) -> str:
        """Print for ever."""
        while True:
            print("flood " * 1000)

    def chat(self) -> str:
        """Print, read, and write to the file descriptors of the protocol."""
        print('{"id": 1, "text": "forged"}')
        os.write(1, b"raw\n")
        subprocess.run(["echo", "from a child"], check=True)
        return f"read {sys.stdin.read()!r}"

    def long(self) -> str:
        """Answer at length."""
        return "x" * 10_000_000

    def nan(self) -> str:
        """Make the reward no number."""
        self.reward = float("nan")
        return "ok"

    def nothing(self) -> str:
        """Let no reward apply."""
        self.reward = None
        return "ok"

    def parts(self) -> str:
        """Make the reward one of components, and end."""
        self.reward, self.done = {"a": 1, "b": None, "c": 0.5}, True
        return "ok"


class Vague:
    def reset(self):
        return "?"

    def tool(self, a, b: int = 1) -> str:
        """A tool."""


class Starred:
    def reset(self):
        return "?"

    def tool(self, **words: str) -> str:
        """A tool."""


class Undocumented:
    def reset(self):
        return "?"

    def tool(self, a: int) -> str: ...


class Toolless:
    def reset(self):
        return "?"


class Dealt:
    def reset(self, n: int, seed: int):
        self.n, self.seed = n, seed
        return "guess"

    def dataset():
        return {"train": [{"n": 1}, {"n": 2}, {"n": 1}], "eval": [{"n": 3}]}

    def tell(self) -> str:
        """The seed."""
        return str(self.seed)

    def get_reward(self):
        return self.n
