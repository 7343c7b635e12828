"""Hosts instances of one plain Python class and speaks JSON lines with the server that has started it.

Guarantee: one request, one answer, in order; nothing the class prints or raises gets in between. Requests come on what was
standard input, answers leave on what was standard output; the class has an empty input, and its output goes to the log.

Request                                                  Answer
{"op": "open", "module", "class", "path", "memory",      {"tools": [...], "rows": [...] | {split: [...]} | null, "version"}
 "rows": bool}
{"op": "reset", "episode", "row": {...}, "seed"}         {"observation": str | null}
{"op": "call", "episode", "tool", "arguments": "{...}"}  {"text": str, "done"} or {"refused": str, "done"}
{"op": "score", "episode"}                               {"rewards": {name: number | null}}
{"op": "close", "episode"}                               {}

Each has an "id", which the answer repeats. What fails is answered by {"error", "traceback"}; the instance is not used again. What
leaves the whole process in doubt (no memory, an exit) says {"fatal": true} besides, and ends it. Only the standard library is used.
"""

import enum
import faulthandler
import hashlib
import importlib
import inspect
import json
import math
import os
import random
import signal
import sys
import traceback
import types
import typing

NOT_TOOLS = ("reset", "get_reward", "reward", "dataset")


class Unusable(Exception):
    """What is wrong with a class, in words for its author."""


# ---- types: each hint gives a JSON Schema and a function that makes the value of what JSON has


def typed(hint):
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return typed(args[0])
    if hint is typing.Any:
        return {}, same
    if hint is None or hint is type(None):
        return {"type": "null"}, same
    if origin is typing.Literal:
        return {"enum": list(args)}, lambda value: args[args.index(value)]
    if origin in (typing.Union, types.UnionType):
        return union(args)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}, hint
    if hint is bool:
        return {"type": "boolean"}, same
    if hint is int or hint is float:
        return {"type": "integer" if hint is int else "number"}, hint
    if hint is str:
        return {"type": "string"}, same
    if hint in (list, tuple) or origin in (list, tuple):
        item, make = typed(args[0]) if args and origin is list else ({}, same)
        kind = tuple if tuple in (hint, origin) else list
        return {"type": "array", "items": item}, lambda value: kind(make(v) for v in value)
    if hint is dict or origin is dict:
        item, make = typed(args[1]) if args else ({}, same)
        return {"type": "object", "additionalProperties": item}, lambda value: {k: make(v) for k, v in value.items()}
    raise Unusable(f"has the type {hint!r}, which JSON Schema does not know")


def same(value):
    return value


def union(args):
    members = [typed(arg) for arg in args]

    def make(value):
        if len(args) == 2 and type(None) in args:  # Optional
            return None if value is None else members[args[0] is type(None)][1](value)
        return value

    return {"anyOf": [schema for schema, _ in members]}, make


def describe(method):
    """What the model is told of a tool, and what makes its arguments."""
    doc = inspect.getdoc(method)
    if not doc:
        raise Unusable("has no docstring: the model would not know what it is for; if it is no tool, begin its name with _")
    text, about = docstring(doc)
    hints = typing.get_type_hints(method, include_extras=True)
    properties, makers, required = {}, {}, []
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Unusable(f"takes {parameter}: name each argument")
        if name not in hints:
            raise Unusable(f"says no type of its argument {name}")
        try:
            schema, makers[name] = typed(hints[name])
        except Unusable as e:
            raise Unusable(f"argument {name} {e}") from None
        if name in about:
            schema = {**schema, "description": about[name]}
        if parameter.default is parameter.empty:
            required.append(name)
        properties[name] = schema
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": method.__name__, "description": text, "schema": schema}, makers


def docstring(doc):
    """The description and that of each argument, of a docstring in Google's style."""
    text, about, section, name = [], {}, "", None
    for line in doc.splitlines():
        word = line.strip()
        if word in ("Args:", "Arguments:", "Returns:", "Raises:", "Yields:", "Example:", "Examples:"):
            section, name = word, None
        elif not section:
            text.append(line)
        elif section in ("Args:", "Arguments:") and word:
            head, colon, rest = word.partition(":")
            first = head.split("(")[0].strip()
            if colon and first.isidentifier():
                name = first
                about[name] = rest.strip()
            elif name:
                about[name] += " " + word
    return "\n".join(text).strip(), about


# ---- the class


class Host:
    def __init__(self):
        self.cls, self.tools, self.idle, self.episodes, self.loop = None, {}, [], {}, None

    def open(self, request):
        limit(request["memory"])
        sys.path.insert(0, request["path"])
        module = importlib.import_module(request["module"])
        self.cls = attribute(module, request["class"])
        if not isinstance(self.cls, type):
            raise Unusable(f"{request['class']} is no class")
        if not callable(getattr(self.cls, "reset", None)):
            raise Unusable(f"{request['class']} has no method reset")
        instance = self.cls()
        self.idle.append(instance)
        described = []
        for name, _ in inspect.getmembers(self.cls, inspect.isfunction):
            if name.startswith("_") or name in NOT_TOOLS:
                continue
            try:
                tool, makers = describe(getattr(instance, name))
            except Unusable as e:
                raise Unusable(f"{request['class']}.{name} {e}") from None
            tool["name"] = name
            described.append(tool)
            self.tools[name] = makers
        if not described:
            raise Unusable(f"{request['class']} has no tools: public methods with types and a docstring")
        rows = self.rows(instance) if request["rows"] else None
        with open(module.__file__, "rb") as source:
            version = hashlib.sha256(source.read()).hexdigest()[:12]
        return {"tools": described, "rows": rows, "version": str(getattr(self.cls, "version", version))}

    def rows(self, instance):
        rows = getattr(instance, "dataset", None)
        if inspect.isfunction(getattr(self.cls, "dataset", None)) and not inspect.signature(self.cls.dataset).parameters:
            rows = self.cls.dataset
        rows = self.awaited(rows()) if callable(rows) else rows
        if rows is None:
            return None
        if isinstance(rows, dict):
            return {split: list(some) for split, some in rows.items()}
        return list(rows)

    def reset(self, request):
        instance = self.idle.pop() if self.idle else self.cls()
        row, parameters = dict(request["row"]), inspect.signature(instance.reset).parameters
        random.seed(row["seed"] if isinstance(row.get("seed"), int) else request["seed"])
        if "seed" in parameters:
            row.setdefault("seed", request["seed"])
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            row = {name: value for name, value in row.items() if name in parameters}
        observation = text_of(self.awaited(instance.reset(**row)), none=True)
        self.episodes[request["episode"]] = [instance, random.getstate()]
        return {"observation": observation}

    def call(self, request):
        instance = self.instance(request)
        method = getattr(instance, request["tool"])
        try:
            arguments = json.loads(request["arguments"])
            made = {name: self.tools[request["tool"]][name](value) for name, value in arguments.items()}
            answer = {"text": text_of(self.awaited(method(**made)))}
        except (MemoryError, Unusable):
            raise
        except Exception as e:  # as TRL does: the model is told, and may do better
            traceback.print_exc()
            answer = {"refused": str(e) or type(e).__name__}
        return {**answer, "done": done(instance)}

    def score(self, request):
        instance = self.instance(request)
        reward = getattr(instance, "get_reward", None) or getattr(instance, "reward", Unusable)
        if reward is Unusable:
            raise Unusable(f"{self.cls.__name__} has neither a method get_reward nor an attribute reward")
        reward = self.awaited(reward()) if callable(reward) else reward
        rewards = reward if isinstance(reward, dict) else {"reward": reward}
        return {"rewards": {str(name): number(name, value) for name, value in rewards.items()}}

    def close(self, request):
        episode = self.episodes.pop(request["episode"], None)
        if episode is not None:
            self.idle.append(episode[0])
        return {}

    def instance(self, request):
        instance, state = self.episodes[request["episode"]]
        random.setstate(state)
        return instance

    def awaited(self, value):
        if not inspect.isawaitable(value):
            return value
        if self.loop is None:
            import asyncio  # it takes as long to import as all the others

            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(value)

    def answer(self, request):
        try:
            answer = getattr(self, request["op"])(request)
            episode = self.episodes.get(request.get("episode"))
            if episode is not None:
                episode[1] = random.getstate()
            return json.dumps({**answer, "id": request["id"]}, allow_nan=False), False
        except BaseException as e:
            self.episodes.pop(request.get("episode"), None)
            fatal = isinstance(e, MemoryError) or not isinstance(e, Exception)
            text = str(e) if isinstance(e, Unusable) else traceback.format_exception_only(type(e), e)[-1].strip()
            failed = {"error": text, "traceback": traceback.format_exc(), "fatal": fatal, "id": request["id"]}
            return json.dumps(failed), fatal


def attribute(value, path):
    for name in path.split("."):
        value = getattr(value, name)
    return value


def done(instance):
    """Whether the class says that the episode is over."""
    value = getattr(instance, "done", False)
    return not callable(value) and bool(value)


def text_of(value, none=False):
    if value is None and none:
        return None
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        for part in value:
            if part["type"] != "text":
                raise Unusable(f"a message has a part of type {part['type']!r}: only text is supported")
        return "".join(part["text"] for part in value)
    return str(value)


def number(name, value):
    if value is None:
        return None
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"the reward {name!r} is {value}")
    return value


def limit(memory):
    if memory:
        import resource  # not on every system

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def main():
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    host = Host()
    for line in requests:
        answer, fatal = host.answer(json.loads(line))
        answers.write(answer.encode() + b"\n")
        answers.flush()
        if fatal:
            break
    os._exit(0)


main()
