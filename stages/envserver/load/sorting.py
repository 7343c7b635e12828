"""A taskset of verifiers 0.4.0 that says the same to the policy as alphabet-sort does, with a harness that lives in the server."""

import httpx
import verifiers.v1 as vf

CLIENT = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))


class SortingData(vf.TaskData):
    later: list[str]  # what is said behind each answer but the last
    want: str


class SortingTask(vf.Task[SortingData]):
    @vf.reward
    async def sorted(self, trace: vf.Trace) -> float:
        want, said = self.data.want.splitlines(), trace.last_reply.splitlines()
        return sum(a == b for a, b in zip(want, said)) / len(want)


class SortingTaskset(vf.Taskset[SortingTask, vf.TasksetConfig]):
    def load(self):
        return iter(())  # the client has the tasks


class Here(vf.Harness[vf.HarnessConfig]):
    """Asks the model in this process, over connections that all rollouts share: no process for each."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        messages = [{"role": "user", "content": data.prompt}]
        for said in [*data.later, None]:
            body = {"model": ctx.model, "messages": messages}
            reply = await CLIENT.post(f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"})
            if reply.status_code != 200:
                return vf.ProgramResult(exit_code=1, stdout="", stderr=reply.text)
            messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": said}]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SortingTaskset", "Here"]
