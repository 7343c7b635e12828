"""The two processes of verifiers 0.4.0: `serve` is an environment server, `drive` lets it play through the package's own client.

Each takes an order, a JSON object, as its argument, and says in a line of JSON what came of it.
"""

import asyncio
import json
import os
import sys
import time


def serve(order):
    from verifiers.v1.serve import serve_env
    from verifiers.v1.utils import loaders

    sys.path.insert(0, os.path.dirname(__file__))
    config = {"taskset": {"id": "sorting"}, "agent": {"runtime": {"type": "subprocess"}}}

    class Ready:
        def put(self, address):
            print(json.dumps({"address": address}), flush=True)

    serve_env(max_workers=1, address="tcp://127.0.0.1:*", address_queue=Ready(), config=loaders.resolve_env_config(config))


async def drive(order):
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.serve import EnvClient
    from verifiers.v1.types import SamplingConfig

    server = EnvClient(order["address"])
    await server.wait_for_server_startup()
    config = EvalClientConfig(base_url=order["model"] + "/v1", api_key_var="LOAD_HAS_NO_KEY")
    sampling = SamplingConfig(temperature=1.0, max_tokens=1024)
    with open(order["tasks"], encoding="utf-8") as f:
        tasks = [json.loads(line) for line in f]
    room, counts = asyncio.Semaphore(order["at_once"]), {"played": 0, "failed": 0, "why": ""}

    async def play(i):
        async with room:
            episode = await server.run(config, "slow", sampling, {"idx": i, **tasks[i % len(tasks)]})
        trace = episode.traces[0]
        if episode.ok and trace.rewards and len(trace.nodes) == order["nodes"]:
            counts["played"] += 1
        else:
            counts["failed"] += 1
            counts["why"] = f"{len(trace.nodes)} messages, errors {trace.errors} {episode.errors}"

    start = time.monotonic()
    await asyncio.gather(*(play(i) for i in range(order["rollouts"])))
    print(json.dumps(counts | {"seconds": time.monotonic() - start}), flush=True)


if __name__ == "__main__":
    what, order = sys.argv[1], json.loads(sys.argv[2])
    if what == "serve":
        serve(order)
    else:
        asyncio.run(drive(order))
