"""Plays what prl serves with the EnvClient of verifiers 0.4.0. Arguments: the server's address, and the URL of the models."""

import asyncio
import sys
import uuid

import msgpack
import zmq
import zmq.asyncio
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.types import SamplingConfig

address, models = sys.argv[1:3]
sampling = SamplingConfig(temperature=0.7, max_tokens=8, extra_body={"top_k": -1})


def at(mode, kind=EvalClientConfig, **more):
    return kind(base_url=f"{models}/{mode}/v1", api_key_var="PRL_TEST_KEY", headers={"X-Mine": "1"}, **more)


async def refused(text, coroutine):
    try:
        await coroutine
    except RuntimeError as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"no error {text}")


async def wire():
    """The frames, beside the client."""
    ctx = zmq.asyncio.Context()
    socket = ctx.socket(zmq.DEALER)
    socket.connect(address)

    async def ask(method, payload):
        rid = uuid.uuid4().hex.encode()
        await socket.send_multipart([rid, method, payload])
        got, kind, data = await asyncio.wait_for(socket.recv_multipart(), 20)
        assert (got, kind) == (rid, b"reply"), (got, kind)
        return msgpack.unpackb(data)

    assert await ask(b"health", msgpack.packb({})) == {"success": True, "error": None}
    assert "unknown method 'info'" in (await ask(b"info", msgpack.packb({})))["error"]
    assert (await ask(b"run", msgpack.packb({"nope": 1})))["error"].startswith("ValidationError: ")
    assert (await ask(b"run", b"\xc1"))["success"] is False
    await socket.send_multipart([b"1", b"2", b"3", b"4"])  # dropped
    assert await ask(b"cancel", msgpack.packb({"request_id": "x"})) == {"success": True, "error": None, "cancelled": False}
    # that of v0 on the same connection
    await socket.send_multipart([b"r", b"ping"])
    rid, data = await asyncio.wait_for(socket.recv_multipart(), 20)
    assert rid == b"r" and msgpack.unpackb(data) == {"success": True, "error": None}
    socket.close(0)
    ctx.term()


async def main():
    await wire()
    c = EnvClient(address)
    await c.wait_for_server_startup()
    deltas = []
    e = await c.run(at("ok"), "policy", sampling, {"idx": 3, "mine": {"a": 1}}, on_delta=deltas.append)
    assert e.ok and e.env.id == "wordle" and len(e.traces) == 1 and e.errors == [], e
    (t,) = e.traces
    assert t.ok and t.is_completed and t.stop_condition and not t.is_timeout, t
    assert t.task.data.idx == 3 and t.task.data.model_extra == {"mine": {"a": 1}} and t.task.key, t.task
    assert [n.message.role for n in t.nodes[:4]] == ["user", "assistant", "user", "assistant"], t.nodes
    assert [n.parent for n in t.nodes] == [None, *range(len(t.nodes) - 1)]
    assert [n.sampled for n in t.nodes] == [n.message.role == "assistant" for n in t.nodes]
    assert t.num_turns == len(t.calls) == 6 and t.calls[0].usage.prompt_tokens == 3 and t.calls[-1].node == len(t.nodes) - 1, t.calls
    assert t.calls[0].endpoint == "/chat/completions" and t.calls[0].finish_reason == "stop" and t.calls[0].sampling.temperature == 0.7
    assert t.nodes[0].token_ids == [] and t.nodes[1].logprobs == []
    assert t.rewards["solved"].score == 0 and t.rewards["solved"].weight == 1 and t.metrics["turns"] == 6, t.rewards
    assert t.info["prl"]["index"] == 3 and t.agent.config.model == "policy" and t.num_output_tokens == 12, t.info
    assert t.timing.agent.end >= t.timing.agent.start > 0 and len(t.branches) == 1
    assert "open" in deltas[0] and len(deltas) > 6 and all("open" not in d for d in deltas[1:]), len(deltas)

    again = await c.run(at("ok"), "policy", sampling, {"split": "eval", "index": 1, "task": {"answer": "crane"}})
    assert again.traces[0].stop_condition == "solved" and again.traces[0].reward > 1, again.traces[0]

    e = await c.run(at("ok", TrainClientConfig, renderer_model_name="any"), "policy", sampling, {"idx": 0})
    (t,) = e.traces
    assert e.ok and t.calls[0].endpoint == "/inference/v1/generate", t.errors
    for n in t.nodes:
        assert len(n.token_ids) == len(n.mask) == len(n.is_content) > 0 and sum(n.mask) == len(n.logprobs), n
        assert any(n.mask) == n.sampled and any(n.is_content), n
    assert [round(x, 2) for x in t.nodes[1].logprobs] == [-0.5] * 6, t.nodes[1].logprobs
    assert len(t.branches) == 1 and t.num_total_tokens == len(t.branches[0].token_ids), (t.num_total_tokens, len(t.branches[0].token_ids))

    e = await c.run(at("fail"), "policy", sampling, {"idx": 0})
    (t,) = e.traces
    assert not e.ok and e.errors == [] and not t.ok and t.is_completed and t.rewards == {}, e
    assert t.last_error.type == "ProviderError" and t.last_error.status_code == 500 and t.stop_condition == "provider_error", t.last_error
    assert t.calls[-1].error.status_code == 500 and t.calls[-1].node is None, t.calls

    e = await c.run(at("full"), "policy", sampling, {"idx": 0})
    assert e.ok and e.traces[0].stop_condition == "max_tokens" and e.traces[0].rewards["solved"].score == 0, e.traces[0]
    e = await c.run(at("cut"), "policy", sampling, {"idx": 0})
    assert e.ok and e.traces[0].is_truncated and e.traces[0].calls[-1].finish_reason == "length", e.traces[0]

    await refused("ValidationError: task_data", c.run(at("ok"), "policy", sampling, {"idx": 10**6}))
    await refused("ValidationError: task_data", c.run(at("ok"), "policy", sampling, {"idx": None}))
    await refused("ValidationError: client", c.run(EvalClientConfig(base_url="http://elsewhere.example/v1"), "policy", sampling, {"idx": 0}))
    await refused("top_k", asyncio.wait_for(train_with(c, top_k=5), 20))

    hangs = asyncio.create_task(c.run(at("hang"), "policy", sampling, {"idx": 0}))
    await asyncio.to_thread(sys.stdin.readline)  # the model has been asked
    hangs.cancel()
    await asyncio.gather(hangs, return_exceptions=True)
    runs = [c.run(at("ok"), "policy", sampling, {"idx": i}) for i in range(30)]
    assert [e.traces[0].info["prl"]["index"] for e in await asyncio.gather(*runs)] == list(range(30))
    await c.close()


async def train_with(c, **extra):
    e = await c.run(at("ok", TrainClientConfig), "policy", SamplingConfig(**extra), {"idx": 0})
    raise RuntimeError(str(e.traces[0].errors))


asyncio.run(main())
