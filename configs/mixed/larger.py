"""Which of two digits is the larger? A taskset of verifiers 0.4.0, and a harness that asks it once, in the server's own process."""

import functools

import httpx
import verifiers.v1 as vf


class Pair(vf.TaskData):
    answer: str


class LargerTask(vf.Task[Pair]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply[:1] == self.data.answer)

    @vf.reward(weight=0.2)
    async def either(self, trace: vf.Trace) -> float:
        return float(trace.last_reply[:1] in set(self.data.prompt))


class LargerTaskset(vf.Taskset[LargerTask, vf.TasksetConfig]):
    def load(self):
        for pair in (f"{a}{b}" for a in range(10) for b in range(10) if a != b):
            yield LargerTask(Pair(prompt=pair, answer=max(pair)), self.config.task)


class Ask(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        _, prompt = self.resolve_prompt(data)
        body = {"model": ctx.model, "messages": [{"role": "user", "content": prompt}]}
        reply = await client().post(f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"})
        return vf.ProgramResult(exit_code=int(reply.status_code != 200), stdout="", stderr=reply.text)


@functools.cache
def client():
    """One for all rollouts: making one takes longer than such a rollout."""
    return httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None))


__all__ = ["LargerTaskset", "Ask"]
