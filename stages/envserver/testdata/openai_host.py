"""A harness as people write them: an agent's loop on OpenAI's own client, with a tool, a stream and helpers side by side.
Prints what it was told, for the test to hold against the trace."""

import asyncio
import json
import sys

import openai

BASE, MODEL = sys.argv[1:3]
client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0, timeout=60)

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}]


def loop():
    messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "2 + 3"}]
    while True:
        done = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, logprobs=True, extra_body={"return_token_ids": True})
        (choice,) = done.choices
        assert len(choice.logprobs.content) == len(choice.token_ids) == done.usage.completion_tokens
        assert len(done.prompt_token_ids) == done.usage.prompt_tokens
        messages.append(choice.message.model_dump(exclude_none=True))
        if not choice.message.tool_calls:
            assert choice.finish_reason == "stop", choice
            return choice.message.content
        assert choice.finish_reason == "tool_calls", choice
        for call in choice.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])})


def streamed():
    text, usage = "", None
    for chunk in client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "stream"}], stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert usage.completion_tokens > 0
    return text


async def helpers():
    async with openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0, timeout=60) as many:
        async def one(i):
            done = await many.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": f"helper {i}"}])
            return done.choices[0].message.content
        return await asyncio.gather(*(one(i) for i in range(8)))


def refused():
    try:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], temperature=1.9)
    except openai.BadRequestError as e:
        return e.code
    return "not refused"


(model,) = client.models.list().data
told = {"model": model.id, "max_model_len": model.max_model_len, "refused": refused(), "loop": loop(), "streamed": streamed(), "helpers": asyncio.run(helpers())}
try:
    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 12000}])
except openai.BadRequestError as e:
    told["too_long"] = e.code
print(json.dumps(told))
