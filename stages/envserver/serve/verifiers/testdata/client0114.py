"""Plays what prl serves with the client of verifiers 0.1.14. Arguments: the server's address, and the URL of the models."""

import asyncio
import sys

from verifiers.serve.client.zmq_env_client import ZMQEnvClient
from verifiers.types import ClientConfig

address, models = sys.argv[1:3]


def at(mode, kind="openai_chat_completions"):
    return ClientConfig(client_type=kind, api_base_url=f"{models}/{mode}/v1", api_key_var="PRL_TEST_KEY")


async def main():
    c = ZMQEnvClient(address=address)
    await c.wait_for_server_startup(timeout=60)
    assert await c.health()
    row = {"prompt": [{"role": "user", "content": "?"}], "example_id": 3, "answer": "a"}
    args = {"model": "policy", "sampling_args": {"temperature": 0.7, "max_tokens": 8}, "state_columns": ["trajectory"]}
    out = await c.run_rollout(input=row, client_config=at("ok"), **args)
    assert out["example_id"] == 3 and out["answer"] == "a" and out["error"] is None and out["is_completed"] and not out["is_truncated"], out
    assert isinstance(out["reward"], float) and out["metrics"]["solved"] == 0 and out["metrics"]["turns"] == 6, out
    assert [m["role"] for m in out["prompt"] + out["completion"]][:3] == ["user", "assistant", "user"], out
    assert len(out["trajectory"]) == 6 and out["trajectory"][0]["tokens"]["completion_logprobs"] == [-0.25], out["trajectory"][0]
    outs = await c.run_group(group_inputs=[row, {**row, "info": {"split": "eval", "index": 2}}], client_config=at("ok", "renderer"), **args)
    assert [o["info"]["prl"]["split"] for o in outs] == ["train", "eval"], outs
    for o in outs:
        seen = []
        for step in o["trajectory"]:
            t = step["tokens"]
            assert t["prompt_ids"][: len(seen)] == seen and len(t["completion_ids"]) == len(t["completion_mask"]) == len(t["completion_logprobs"]) == 6, t
            seen = t["prompt_ids"] + t["completion_ids"]
    out = await c.run_rollout(input=row, client_config=at("fail"), **args)
    assert out["error"]["error"] == "ProviderError" and "500" in out["error"]["error_chain_str"], out["error"]
    hangs = asyncio.create_task(c.run_rollout(input=row, client_config=at("hang"), **args))
    await asyncio.to_thread(sys.stdin.readline)
    hangs.cancel()
    await asyncio.gather(hangs, return_exceptions=True)
    await c.close()


asyncio.run(main())
