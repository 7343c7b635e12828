"""Plays what prl serves with the EnvClient of verifiers 0.2.1. Arguments: the server's address, and the URL of the models."""

import asyncio
import sys

from verifiers.v1.clients.config import EvalClientConfig, TrainClientConfig
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.types import SamplingConfig

address, models = sys.argv[1:3]
sampling = SamplingConfig(temperature=0.7, max_tokens=8)


def at(mode, kind=EvalClientConfig):
    return kind(base_url=f"{models}/{mode}/v1", api_key_var="PRL_TEST_KEY")


async def main():
    c = EnvClient(address)
    await c.wait_for_server_startup()
    info = await c.info()
    assert info.num_tasks > 100 and info.requires_group_scoring is False, info
    t = await c.run_rollout(3, at("ok"), "policy", sampling)
    assert t.is_completed and not t.errors and t.num_turns == len(t.calls) == 6 and t.rewards["solved"] == 0, t
    assert t.metrics["turns"] == 6 and t.stop_condition and t.timing.generation.end > 0 and t.info["prl"]["index"] == 3, t
    traces = await c.run_group(0, 3, at("ok", TrainClientConfig), "policy", sampling)
    assert len({t.id for t in traces}) == 3
    for t in traces:
        for n in t.nodes:
            assert len(n.token_ids) == len(n.mask) > 0 and sum(n.mask) == len(n.logprobs), n
    t = await c.run_rollout(0, at("fail"), "policy", sampling)
    assert t.errors[-1].type == "ProviderError" and t.errors[-1].status_code == 500 and t.rewards == {}, t.errors
    try:
        await c.run_rollout(10**6, at("ok"), "policy", sampling)
        raise AssertionError("a task that is not there")
    except RuntimeError as e:
        assert "ValidationError: task_idx" in str(e), e
    await c.close()


asyncio.run(main())
