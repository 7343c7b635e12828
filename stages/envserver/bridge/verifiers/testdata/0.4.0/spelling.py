"""Say a word backwards, once, to a harness that lives in the server: a taskset of verifiers 0.4.0."""

import asyncio
import os
import signal
import time

import httpx
import verifiers.v1 as vf

WORDS = ["stone", "river", "candle", "mirror", "window", "garden", "pepper", "silver", "copper", "basket"]


class WordData(vf.TaskData):
    word: str
    fault: str = ""  # what goes wrong
    difficulty: float = 0.5


class WordTask(vf.Task[WordData]):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["drawn"] = {"letters": len(self.data.word), 7: "seven"}

    @vf.reward(weight=2.0)
    async def correct(self, trace: vf.Trace) -> float:
        match self.data.fault:
            case "raise":
                raise RuntimeError("the dictionary is lost")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "nan":
                return float("nan")
        return float(trace.last_reply == self.data.word[::-1])

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return 1.0 if len(trace.last_reply) <= 8 else 0.0

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SpellingConfig(vf.TasksetConfig):
    split: str = "train"


class SpellingTaskset(vf.Taskset[WordTask, SpellingConfig]):
    def load(self):
        words = WORDS if self.config.split == "train" else [w[1:] for w in WORDS[:4]]
        for word in words:
            data = WordData(prompt=f"Say {word} backwards.", word=word)
            yield WordTask(data, self.config.task)


class HereConfig(vf.HarnessConfig):
    turns: int = 1


class Here(vf.Harness[HereConfig]):
    """Asks the model `turns` times, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        async with httpx.AsyncClient(timeout=60, headers={"Authorization": f"Bearer {secret}"}) as client:
            for turn in range(self.config.turns):
                body = {"model": ctx.model, "messages": messages}
                reply = await client.post(f"{endpoint}/chat/completions", json=body)
                if reply.status_code != 200:
                    return vf.ProgramResult(exit_code=1, stdout="", stderr=reply.text)
                said = reply.json()["choices"][0]["message"]
                messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": f"Again ({turn + 1})."}]
                await asyncio.sleep(0)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SpellingTaskset", "Here"]
