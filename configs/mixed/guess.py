"""Guess a digit: an environment of OpenEnv and its server.

    .cache/openenv/bin/python configs/mixed/guess.py        serves it on port 8010; another port may follow
"""

import random
import sys

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    digit: str


class Hint(Observation):
    hint: str


class Digit(Environment):
    """Four guesses. The reward is 1 for the digit, less the farther the last guess was from it, and half for more than a digit."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.digit = random.Random(seed).randint(0, 9)
        self._state = State(episode_id=episode_id)
        return Hint(hint="guess")

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        last = self._state.step_count == 4
        if action.digit[:1] not in set("0123456789"):
            return Hint(hint="a digit", reward=0.0, done=last)
        off = int(action.digit[0]) - self.digit
        worth = 1.0 if len(action.digit) == 1 else 0.5
        if off == 0:
            return Hint(hint="yes", reward=worth, done=True)
        return Hint(hint="less" if off > 0 else "more", reward=worth * (0.5 - abs(off) / 20), done=last)

    @property
    def state(self):
        return self._state


# A rollout has an environment of its own: max_concurrent_envs of them may be played at once.
app = create_app(Digit, Guess, Hint, max_concurrent_envs=64)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8010, log_level="warning")
