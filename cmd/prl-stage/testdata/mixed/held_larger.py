"""The taskset of configs/mixed with a harness that holds rollouts when the policy has answered."""

import asyncio
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(__file__), "../../../../configs/mixed"))

import larger
from hold import hold


class HeldLarger(larger.LargerTaskset):
    pass


class Held(larger.Ask):
    async def launch(self, *args, **kwargs):
        result = await super().launch(*args, **kwargs)
        if hold():
            await asyncio.Event().wait()
        return result


__all__ = ["HeldLarger", "Held"]
