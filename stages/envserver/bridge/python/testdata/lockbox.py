"""A box with a lock of three digits, for the policy to open."""

import random
from enum import Enum
from typing import Literal, Optional


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


class Lockbox:
    """Each wheel of the lock has a digit; hints say whether it is too low or too high."""

    dataset = [{"prompt": f"Open box {n}.", "code": [n % 10, n // 10 % 10, 7]} for n in range(50)]

    def reset(self, code: list[int], **row) -> str:
        self.code, self.wheels, self.done, self.tries = code, [0, 0, 0], False, 0
        return f" It smells of {random.choice(['oil', 'rust', 'pine'])}."

    def turn(self, wheel: Literal[0, 1, 2], digit: int, note: Optional[str] = None) -> str:
        """Set a wheel of the lock.

        Args:
            wheel: which one, from the left
            digit: 0 to 9
            note: a word to yourself
        """
        if not 0 <= digit <= 9:
            raise ValueError(f"there is no digit {digit}")
        self.wheels[wheel] = digit
        return "right" if digit == self.code[wheel] else "too low" if digit < self.code[wheel] else "too high"

    def look(self, side: Side = Side.LEFT) -> str:
        """Look at a side of the box."""
        return f"The {side.value} side is {random.choice(['red', 'green', 'blue'])}."

    async def open(self) -> str:
        """Try to open the box. There are two tries."""
        self.tries += 1
        self.done = self.wheels == self.code or self.tries == 2
        return "It opens." if self.wheels == self.code else "It is locked."

    def get_reward(self) -> float:
        return sum(w == c for w, c in zip(self.wheels, self.code)) / 3
