"""The server of configs/mixed with an environment that holds rollouts in their first step. It ends with its standard input."""

import os
import sys
import threading

sys.path.insert(1, os.path.join(os.path.dirname(__file__), "../../../../configs/mixed"))

import guess
import uvicorn
from hold import hold
from openenv.core.env_server import create_app


class Held(guess.Digit):
    def step(self, action, timeout_s=None, **kwargs):
        if self.state.step_count == 0 and hold():
            threading.Event().wait()
        return super().step(action, timeout_s, **kwargs)


def until_parent_is_gone():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=until_parent_is_gone, daemon=True).start()
app = create_app(Held, guess.Guess, guess.Hint, max_concurrent_envs=64)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
