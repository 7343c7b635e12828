"""Say a word backwards, once, to a harness that lives in the server: a taskset of verifiers 0.2.1."""

import os
import signal
import time

import httpx
import verifiers.v1 as vf

WORDS = ["stone", "river", "candle", "mirror", "window", "garden", "pepper", "silver", "copper", "basket"]


class WordData(vf.TaskData):
    word: str
    fault: str = ""  # what goes wrong


class WordTask(vf.Task[WordData]):
    @vf.reward(weight=2.0)
    async def correct(self, trace: vf.Trace) -> float:
        match self.data.fault:
            case "raise":
                raise RuntimeError("the dictionary is lost")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
        return float(trace.assistant_messages[-1].content == self.data.word[::-1])

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.assistant_messages[-1].content))


class Grouped(WordTask):
    @vf.group_reward
    async def best(self, traces: list[vf.Trace]) -> list[float]:
        return [0.0 for _ in traces]


class SpellingConfig(vf.TasksetConfig):
    grouped: bool = False


class SpellingTaskset(vf.Taskset[WordTask, SpellingConfig]):
    def load(self):
        for i, word in enumerate(WORDS):
            data = WordData(idx=i, prompt=f"Say {word} backwards.", word=word, fault={7: "raise", 8: "die", 9: "hang"}.get(i, ""))
            yield (Grouped if self.config.grouped else WordTask)(data, self.config.task)


class HereConfig(vf.HarnessConfig):
    pass


class Here(vf.Harness[HereConfig]):
    """Asks the model once, in this process."""

    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls):
        _, prompt = self.resolve_prompt(trace.task.data)
        async with httpx.AsyncClient(timeout=60, headers={"Authorization": f"Bearer {secret}"}) as client:
            body = {"model": ctx.model, "messages": [{"role": "user", "content": prompt}]}
            reply = await client.post(f"{endpoint}/chat/completions", json=body)
        return vf.ProgramResult(exit_code=int(reply.status_code != 200), stdout="", stderr=reply.text)


__all__ = ["SpellingTaskset", "Here"]
