"""Plays what prl serves with OpenEnv's own clients. Arguments: the servers' token, and what to check at which URL: generic=…"""

import asyncio
import sys

from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

headers = {"Authorization": "Bearer " + sys.argv[1]}


def refused(code, call):
    try:
        call()
    except (RuntimeError, ConnectionError) as e:
        assert code in str(e), (code, str(e))
    else:
        raise AssertionError(f"no error {code}")


def generic(url):
    """An environment of messages: wordle, played with the synchronous client."""
    with GenericEnvClient(base_url=url, headers=headers).sync() as env:
        refused("VALIDATION_ERROR", lambda: env.reset(split="test"))
        refused("VALIDATION_ERROR", lambda: env.reset(index=10**6))
        first = env.reset(seed=7, episode_id="ep-7", unknown="ignored")
        assert first.done is False and first.reward is None, first
        assert first.observation["messages"][0]["role"] == "user" and first.observation["prompt"] == ".....", first
        assert first.observation["metadata"] == first.metadata == {"split": "train", "index": 7, "seed": 7}, first
        refused("VALIDATION_ERROR", lambda: env.step({"guess": "crane"}))
        step = env.step({"message": "crane"})
        assert step.reward is None and not step.done and len(step.observation["prompt"]) == 5, step
        state = env.state()
        assert state["episode_id"] == "ep-7" and state["step_count"] == 1 and state["episode"]["index"] == 7, state
        again = env.reset(seed=7)
        assert again.observation["prompt"] == first.observation["prompt"]
        assert env.step({"message": "crane", "metadata": {}}).observation["prompt"] == step.observation["prompt"]
        for _ in range(5):
            last = env.step({"message": "crane"})
        assert last.done and isinstance(last.reward, float), last
        assert last.metadata["rewards"]["solved"] == 0 and last.metadata["stop_reason"] and last.metadata["truncated"] is False, last
        refused("EXECUTION_ERROR", lambda: env.step({"message": "crane"}))
        assert env.reset(split="eval", index=3).metadata["split"] == "eval"
        ended = env.step({"type": "finish"})
        assert ended.done and ended.reward is not None, ended


async def tools(url):
    """An environment with tools: the client of MCP, over HTTP and over its WebSocket at once."""
    async with MCPToolClient(base_url=url, headers=headers) as env:
        found = await env.list_tools()
        assert [t.name for t in found] == ["Guess"] and found[0].description and "word" in found[0].input_schema["properties"], found
        assert await env.has_tool("Guess")
        first = await env.reset(index=0, seed=1)
        assert first.observation.messages and first.observation.prompt == ".....", first
        assert len(await env.call_tool("Guess", word="crane")) == 5
        assert (await env.call_tool("Guess", word="zzzzz")).startswith("error: ")
        for name, args, error in (("Gues", {}, 'there is no tool "Gues"'), ("Guess", {"letter": "a"}, "arguments of Guess")):
            try:
                await env.call_tool(name, **args)
                raise AssertionError(name)
            except RuntimeError as e:
                assert error in str(e), e
        step = await env.step(CallToolAction(tool_name="Guess", arguments={"word": "crane"}))
        assert len(step.observation.result["data"]) == 5 and step.observation.error is None and not step.done, step
        for name, args, error in (("Gues", {}, "tool_not_found"), ("Guess", {"letter": "a"}, "invalid_args")):
            step = await env.step(CallToolAction(tool_name=name, arguments=args))
            assert step.observation.error.error_type.value == error and step.observation.result is None, step
        assert [t.name for t in (await env.step(ListToolsAction())).observation.tools] == ["Guess"]
        assert (await env.state()).step_count == 7
        while not step.done:
            step = await env.step(CallToolAction(tool_name="Guess", arguments={"word": "crane"}))
        assert isinstance(step.reward, float) and step.observation.metadata["rewards"]["solved"] == 0, step
        try:
            await env.call_tool("Guess", word="crane")
            raise AssertionError("after the end")
        except RuntimeError as e:
            assert "reset" in str(e), e


def full(url):
    """A server that has one place: the second client is told so, and gets it when the first one is gone."""
    second = GenericEnvClient(base_url=url, headers=headers).sync()
    with GenericEnvClient(base_url=url, headers=headers).sync() as first:
        first.reset()
        refused("CAPACITY_REACHED", second.reset)
    for _ in range(20):
        assert second.reset().observation["prompt"]
        second.disconnect()
    second.close()


for argument in sys.argv[2:]:
    name, url = argument.split("=", 1)
    check = {"generic": generic, "tools": tools, "full": full}[name](url)
    if check is not None:
        asyncio.run(check)
