"""Rewards by chance, for a run of the whole pipeline; its process is killed once on the way."""

import os
import random
import signal


class Dice:
    begun = 0  # episodes, of all instances

    def reset(self, killed="", **row):
        Dice.begun += 1
        if killed and Dice.begun == 10 and not os.path.exists(killed):
            with open(killed, "w") as f:
                f.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return "?"

    def roll(self) -> str:
        """Roll."""
        return "1"

    def get_reward(self) -> float:
        return random.SystemRandom().random()
