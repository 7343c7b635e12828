"""Environments on the real OpenEnv, one below a path each: python server.py <port>, 0 for a free one."""

import asyncio
import logging
import os
import random
import sys
import threading
import time
from typing import Any, Literal, Optional

logging.disable()  # tools are to fail here

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Say(Action):
    message: str = Field(max_length=1000, description="what to say")


class Heard(Observation):
    text: str = ""
    echoes: list[str] = Field(default_factory=list)


class Echo(Environment):
    """Says what it hears, with a reward for each letter, and ends on "bye"."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, greeting: str = "hello", **kwargs: Any) -> Heard:
        self.heard = []
        self._state = State(episode_id=episode_id, step_count=0, seed=seed, others=sorted(kwargs))
        return Heard(text=f"{greeting} {random.Random(seed).randint(0, 999)}", reward=0.0, metadata={"ready": True})

    def step(self, action: Say, timeout_s: Optional[float] = None, **kwargs: Any) -> Heard:
        self._state.step_count += 1
        text = action.message
        if text == "raise":
            raise ValueError("that was no move")
        if text == "exit":
            os._exit(3)
        if text == "hang":
            time.sleep(3600)
        if text == "big":
            text = "x" * 3_000_000
        if text == "silent":
            return Heard(reward=None)
        self.heard.append(text)
        return Heard(text=text, echoes=self.heard[-2:], reward=len(text) / 10, done=text == "bye", metadata={"letters": len(text), "who": "echo"})

    @property
    def state(self) -> State:
        return self._state


class Guess(Action):
    number: int = Field(ge=0, le=9)
    mood: Literal["sure", "unsure"] = "sure"


class Hint(Observation):
    hint: str


class Number(Environment):
    """Guess a digit."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> Hint:
        self.secret = random.Random(seed).randint(0, 9)
        self._state = State(episode_id=episode_id)
        return Hint(hint="I think of a digit.")

    def step(self, action: Guess, timeout_s: Optional[float] = None, **kwargs: Any) -> Hint:
        self._state.step_count += 1
        if action.number == self.secret:
            return Hint(hint="right", reward=True, done=True)
        return Hint(hint="too low" if action.number < self.secret else "too high")

    @property
    def state(self) -> State:
        return self._state


class Desk(MCPEnvironment):
    """Tools of MCP. "finish" ends the episode: this is what step is for in such an environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("desk")

        @mcp.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @mcp.tool
        def fail(why: str) -> str:
            """Fail."""
            raise RuntimeError(why)

        @mcp.tool
        def draw():
            """Draw a dot."""
            return ["a dot", Image(data=b"not really a png", format="png")]

        @mcp.tool
        def finish(answer: str) -> str:
            """Hand in the answer."""
            return f"thanks for {answer}"

        super().__init__(mcp)

    def reset(self, seed: Optional[int] = None, episode_id: Optional[str] = None, **kwargs: Any) -> Observation:
        self._state = State(episode_id=episode_id)
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def _step_impl(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        raise ValueError("no such action")

    async def step_async(self, action: Action, timeout_s: Optional[float] = None, **kwargs: Any) -> Observation:
        self._state.step_count += 1
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(action, CallToolAction) and action.tool_name == "finish":
            observation.done, observation.reward = True, 1.0 if action.arguments.get("answer") == "5" else 0.0
        return observation

    @property
    def state(self) -> State:
        return self._state


class Unmakable(Echo):
    def __init__(self) -> None:
        raise RuntimeError("there is no such thing")


class Moody(Echo):
    """Raises in reset."""

    def reset(self, seed: Optional[int] = None, mood: str = "good", **kwargs: Any) -> Heard:
        if mood != "good":
            raise RuntimeError("not in the mood")
        return super().reset(seed=seed, **kwargs)


app = FastAPI()
app.mount("/echo", create_app(Echo, Say, Heard, max_concurrent_envs=64))
app.mount("/one", create_app(Echo, Say, Heard))
app.mount("/three", create_app(Echo, Say, Heard, max_concurrent_envs=3))
app.mount("/number", create_app(Number, Guess, Hint, max_concurrent_envs=64))
app.mount("/desk", create_app(Desk, CallToolAction, CallToolObservation, max_concurrent_envs=64))
app.mount("/rpc", create_app(Desk, Say, Heard, max_concurrent_envs=64))
app.mount("/unmakable", create_app(Unmakable, Say, Heard))
app.mount("/moody", create_app(Moody, Say, Heard, max_concurrent_envs=64))


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("port", self.servers[0].sockets[0].getsockname()[1], flush=True)


def until_parent_is_gone() -> None:
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=until_parent_is_gone, daemon=True).start()
asyncio.run(Server(uvicorn.Config(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")).serve())
