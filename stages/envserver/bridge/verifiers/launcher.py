"""Starts what prl needs of the package verifiers: a server of one environment, or the rows of its tasks.

Standard input has one line, the order; its end is the end of prl, and of this process. What is said to prl are JSON lines on
descriptor 3; all that anything here prints is the environment's log.

    {"op": "serve", "id", "args", "eval_args", "path", "wire", "address", "rows": bool, "tasks"}
        -> {"wire", "package", "version", "group"}; with rows a line {"split", "task"} for each task (split is "" where nobody
           says); then {"ready": true} when it listens. SIGTERM ends it.
    {"op": "tasks", …} with the same, without a server

What fails is {"error", "traceback"}. Only the standard library is imported before the environment.
"""

import faulthandler
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback

ENDLESS = 1 << 20  # tasks of a data set that is taken whole


class Unusable(Exception):
    """What is wrong, in words for who configures the environment."""


def main():
    orders = os.fdopen(os.dup(0), "r", encoding="utf-8")  # neither it nor the answers are inherited by what is started here
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.set_inheritable(3, False)
    answers = os.fdopen(3, "w", encoding="utf-8")

    def say(**line):
        answers.write(json.dumps(line, default=plain) + "\n")
        answers.flush()

    try:
        order = json.loads(orders.readline())
        threading.Thread(target=watch, args=(orders,), daemon=True).start()
        if hasattr(signal, "SIGUSR1"):
            faulthandler.register(signal.SIGUSR1, all_threads=True)
        sys.path.insert(0, order["path"])
        # Processes that are started here find modules there, too.
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (order["path"], os.environ.get("PYTHONPATH")) if p)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        kind = spoken(order["id"], order["wire"])
        env = KINDS[kind](order)
        say(**env.about(), group=order["rows"] and env.group())
        if order["rows"]:
            tasks(env, say)
        if order["op"] == "serve":
            env.serve(lambda: say(ready=True))
        else:
            say(ready=True)
    except Unusable as e:
        say(error=str(e), traceback="")
    except Exception as e:
        say(error=f"{type(e).__name__}: {e}", traceback=traceback.format_exc())


def watch(orders):
    """Ends this process when prl has ended: in order, and after a while in any case, with all that it has started."""
    orders.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os.killpg(0, signal.SIGKILL)


def plain(value):
    """JSON of what is none: arrays, dates, enums and such."""
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    return str(value)


def tasks(env, say):
    args, eval_args = env.order["args"], env.order["eval_args"]
    for split, more in (("train", {}), ("eval", eval_args)) if eval_args else (("", {}),):
        for row_split, row in env.rows(merged(args, more), split):
            say(split=row_split, task=row)


def merged(below, above):
    """Two configurations, one laid over the other."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {key: merged(below.get(key), value) for key, value in above.items()}


def spoken(name, wanted):
    """The wire for an environment: as wanted, or the newest that the package has, v0 for what is no taskset."""
    try:
        package = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        raise Unusable(f"{sys.executable} has no package verifiers: set the option python to an interpreter that has it") from None
    has = []
    if exists("verifiers.v1.serve.delta"):
        has.append("0.4.0")
    elif exists("verifiers.v1.serve.types") and hasattr(importlib.import_module("verifiers.v1.serve.types"), "RunRolloutRequest"):
        has.append("0.2.1")
    if exists("verifiers.serve.server.zmq_env_server"):
        has.append("v0")
    if wanted and wanted not in has:
        raise Unusable(f"verifiers {package} does not speak wire {wanted!r}, but {' and '.join(has) or 'none that is known here'}")
    if not has:
        raise Unusable(f"verifiers {package} speaks none of the known wires: install 0.4.0, 0.2.1 or 0.1.14")
    if wanted or len(has) == 1:
        return wanted or has[0]
    return "v0" if hasattr(importlib.import_module(module_of(name)), "load_environment") else has[0]


def exists(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def module_of(name):
    return name.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()


class Announced:
    """Stands for the queue on which a server puts its address when it listens."""

    def __init__(self, ready):
        self.put = lambda _: ready()


class Kind:
    wire = ""

    def __init__(self, order):
        self.order = order

    def about(self):
        package = importlib.metadata.version("verifiers")
        text = json.dumps([self.order["args"], self.order["eval_args"]], sort_keys=True).encode()
        try:
            module = importlib.import_module(self.module())
            folder = os.path.dirname(module.__file__) if hasattr(module, "__path__") else None
            files = sorted(os.path.join(top, f) for top, _, fs in os.walk(folder) for f in fs if f.endswith(".py")) if folder else [module.__file__]
            for path in files:
                with open(path, "rb") as source:
                    text += source.read()
        except (ImportError, TypeError, AttributeError):
            pass
        return {"wire": self.wire, "package": package, "version": f"{package}-{hashlib.sha256(text).hexdigest()[:12]}"}

    def module(self):
        return module_of(self.order["id"])


class V040(Kind):
    """Environments of 0.4.0: a taskset, with agents that play it. The client owns the tasks."""

    wire = "0.4.0"

    def __init__(self, order):
        super().__init__(order)
        from verifiers.v1.utils import loaders

        self.loaders = loaders

    def module(self):
        return self.loaders.import_taskset(self.order["id"]).__name__

    def config(self, args):
        from verifiers.v1.configs.agent import agent_config_fields

        taskset = merged({"id": self.order["id"]}, args.get("taskset", {}))
        kind = self.loaders.env_config_type(self.order["id"], args.get("id") or "")
        # Programs run on this machine unless the arguments say otherwise; verifiers' default is a cloud.
        here = {agent: {"runtime": {"type": "subprocess"}} for agent in agent_config_fields(kind())}
        chosen = {agent: args[agent] for agent in here if "runtime" in (args.get(agent) or {})}
        return self.loaders.resolve_env_config({**merged(here, args), **chosen, "taskset": taskset})

    def group(self):
        return False

    def rows(self, args, split):
        taskset = self.loaders.load_taskset(self.config(args).taskset)
        for task in taskset.take(ENDLESS if taskset.bounded else self.order["tasks"]):
            fields = type(task.data).model_fields
            row = task.data.model_dump(mode="json", serialize_as_any=True)
            yield split, {k: v for k, v in row.items() if v is not None or k not in fields or fields[k].default is not None}

    def serve(self, ready):
        from verifiers.v1.serve import serve_env

        serve_env(max_workers=1, address=self.order["address"], address_queue=Announced(ready), config=self.config(self.order["args"]))


class V021(Kind):
    """Environments of 0.2.1: a taskset and a harness. The server owns the tasks, the client names their numbers."""

    wire = "0.2.1"

    def __init__(self, order):
        super().__init__(order)
        if order.get("eval_args"):
            raise Unusable("eval_args: over wire 0.2.1 the server has one set of tasks: leave them out, and a part is held out")

    def module(self):
        from verifiers.v1 import loaders

        return loaders.import_taskset(self.order["id"]).__name__

    def config(self):
        from verifiers.v1.env import EnvConfig

        return EnvConfig.model_validate(merged({"taskset": {"id": self.order["id"]}}, self.order["args"]))

    def group(self):
        from verifiers.v1.decorators import discover_decorated

        return any(discover_decorated(task, "group_reward") for task in itertools.islice(self.taskset().load(), 1))

    def taskset(self):
        from verifiers.v1 import loaders

        return loaders.load_taskset(self.config().taskset)

    def rows(self, args, split):
        taskset = self.taskset()
        most = self.order["tasks"] if type(taskset).INFINITE else ENDLESS
        for number, task in enumerate(itertools.islice(taskset.load(), most)):
            row = task.data.model_dump(mode="json", serialize_as_any=True)
            yield split, {"task_idx": number} | {k: v for k, v in row.items() if v is not None and k != "idx"}

    def serve(self, ready):
        from verifiers.v1.serve import serve_env

        serve_env(max_workers=1, elastic=False, address=self.order["address"], address_queue=Announced(ready), config=self.config())


class V0(Kind):
    """Environments of v0: load_environment makes them. The client owns the rows of their data sets."""

    wire = "v0"

    loaded = None

    def load(self, args):
        import verifiers

        if args != self.order["args"]:
            return verifiers.load_environment(self.order["id"], **args)
        self.loaded = self.loaded or verifiers.load_environment(self.order["id"], **args)
        return self.loaded

    def group(self):
        return bool(getattr(self.load(self.order["args"]), "requires_group_rollouts", False))

    def rows(self, args, split):
        env = self.load(args)
        if split == "eval":
            for row in env.get_eval_dataset():
                yield split, row
            return
        held_out = env.build_eval_dataset() if not split else None
        for row in env.get_dataset():
            yield split or ("train" if held_out is not None else ""), row
        for row in held_out if held_out is not None else ():
            yield "eval", row

    def serve(self, ready):
        import asyncio
        import multiprocessing

        from verifiers.serve.server.zmq_env_server import ZMQEnvServer

        ours, theirs = multiprocessing.Pipe()  # the end of this process is the end of the worker's
        server = ZMQEnvServer(self.order["id"], env_args=self.order["args"], num_workers=1, death_pipe=theirs, address=self.order["address"])

        async def dies(_):
            # The router would begin the rollouts of a dead worker again, unseen, beside what they have said already.
            os.killpg(0, signal.SIGKILL)

        server.router.restart_worker = dies
        self.loaded, self.pipe = None, ours
        ready()
        asyncio.run(server.run())


KINDS = {kind.wire: kind for kind in (V040, V021, V0)}

if __name__ == "__main__":
    main()
