"""Count with a tool until a number is reached: a taskset of verifiers 0.4.0 with a tool server, for the harness "null"."""

import verifiers.v1 as vf


class CountingState(vf.State):
    count: int = 0


class CountingTools(vf.Toolset[vf.ToolsetConfig, CountingState]):
    TOOL_PREFIX = "counter"

    @vf.tool
    async def add(self, n: int) -> str:
        """Add n to the counter and say what it shows."""
        self.state.count += n
        return str(self.state.count)


class CountingData(vf.TaskData):
    goal: int


class CountingTask(vf.Task[CountingData, CountingState]):
    @classmethod
    def toolsets(cls, config) -> list[vf.Toolset]:
        return [CountingTools(vf.ToolsetConfig())]

    @vf.reward
    async def reached(self, trace: vf.Trace) -> float:
        return float(trace.state.count == self.data.goal)


class CountingTaskset(vf.Taskset[CountingTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        goal = 2
        while True:
            yield CountingTask(CountingData(prompt=f"Count to {goal}.", goal=goal), self.config.task)
            goal += 1


__all__ = ["CountingTaskset"]

if __name__ == "__main__":
    CountingTools.run()
