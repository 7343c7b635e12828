"""What OpenAI's own Python client does with the server. Prints one JSON object for each check: its name, and what failed."""

import asyncio
import json
import sys
import traceback

import openai

NATIVE, SCRIPTED, LOCKED = sys.argv[1:4]  # base URLs: a small model; one that says what it is told to; one with a token
checks = []


def check(f):
    checks.append(f)
    return f


def client(base, key="none"):
    return openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60)


native, scripted = client(NATIVE), client(SCRIPTED)


def chat(text, **params):
    return scripted.chat.completions.create(model="test", messages=[{"role": "user", "content": text}], **params)


@check
def models():
    (model,) = native.models.list().data
    assert (model.id, model.object, model.owned_by) == ("test", "model", "prl") and model.created > 0
    assert native.models.retrieve("test") == model


@check
def completions():
    done = native.completions.create(model="test", prompt="abc", max_tokens=8, temperature=0.5, seed=3, logprobs=2)
    again = native.completions.create(model="test", prompt="abc", max_tokens=8, temperature=0.5, seed=3, logprobs=2)
    (choice,) = done.choices
    assert choice == again.choices[0] and choice.finish_reason in ("stop", "length")
    assert len(choice.token_ids) == len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs) == done.usage.completion_tokens
    assert (done.usage.prompt_tokens, done.usage.total_tokens) == (3, 3 + done.usage.completion_tokens)
    assert done.object == "text_completion" and done.model == "test"
    same = native.completions.create(model="test", prompt=choice.prompt_token_ids, max_tokens=8, temperature=0.5, seed=3, logprobs=2)
    assert same.choices[0] == choice


@check
def several():
    done = native.completions.create(model="test", prompt=["abc", "de"], n=3, max_tokens=8, temperature=2, seed=3)
    assert [c.index for c in done.choices] == list(range(6)) and len({c.text for c in done.choices}) > 2
    one = native.completions.create(model="test", prompt="de", max_tokens=8, temperature=2, seed=3)
    assert one.choices[0].text == done.choices[3].text


@check
def completions_streamed():
    params = dict(model="test", prompt="abc", n=2, max_tokens=8, temperature=0.5, seed=3)
    whole = native.completions.create(**params)
    texts, ids, reasons, usage = ["", ""], [[], []], [None, None], None
    for event in native.completions.create(stream=True, stream_options={"include_usage": True}, **params):
        for c in event.choices:
            texts[c.index] += c.text
            ids[c.index] += c.token_ids or [] if hasattr(c, "token_ids") else []
            reasons[c.index] = c.finish_reason or reasons[c.index]
        usage = event.usage or usage
    assert texts == [c.text for c in whole.choices] and ids == [c.token_ids for c in whole.choices]
    assert reasons == [c.finish_reason for c in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens and usage.prompt_tokens == 3


@check
def stop():
    (choice,) = scripted.completions.create(model="test", prompt="say one two three", stop=["two"], max_tokens=99).choices
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("one ", "stop", "two")
    events = scripted.completions.create(model="test", prompt="say one two three", stop="two", max_tokens=99, stream=True)
    assert "".join(e.choices[0].text for e in events) == "one "


@check
def chats():
    done = chat("say hello", logprobs=True, top_logprobs=2, n=2, max_completion_tokens=50)
    assert [c.message.content for c in done.choices] == ["hello", "hello"] and done.choices[0].message.role == "assistant"
    assert done.object == "chat.completion" and done.choices[0].finish_reason == "stop"
    first = done.choices[0].logprobs.content[0]
    assert first.token == "h" and first.bytes == [ord("h")] and len(first.top_logprobs) == 2
    assert done.usage.prompt_tokens == len(done.prompt_token_ids) and done.usage.prompt_tokens_details.cached_tokens >= 0


@check
def chats_streamed():
    events = list(chat("say <think>hm</think>hello", stream=True, stream_options={"include_usage": True}))
    assert "".join(e.choices[0].delta.content or "" for e in events[:-1]) == "hello"
    assert "".join(getattr(e.choices[0].delta, "reasoning", "") for e in events[:-1]) == "hm"
    assert events[0].choices[0].delta.role == "assistant" and events[-2].choices[0].finish_reason == "stop"
    assert events[-1].choices == [] and events[-1].usage.completion_tokens == 10


TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}]
CALL = 'say <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


@check
def tools():
    (choice,) = chat(CALL, tools=TOOLS, tool_choice="auto").choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.function.name == "f" and json.loads(call.function.arguments) == {"x": 1} and call.type == "function"
    history = [{"role": "user", "content": CALL}, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "say done"}]
    answer = scripted.chat.completions.create(model="test", messages=history, tools=TOOLS)
    assert answer.choices[0].message.content.startswith("done"), answer
    assert answer.usage.prompt_tokens > 0


@check
def tools_streamed():
    with scripted.chat.completions.stream(model="test", messages=[{"role": "user", "content": CALL}], tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0]
    assert message.finish_reason == "tool_calls" and message.message.tool_calls[0].function.name == "f"
    assert json.loads(message.message.tool_calls[0].function.arguments) == {"x": 1}


def fails(kind, status, code, call):
    try:
        call()
    except kind as e:
        assert (e.status_code, e.code) == (status, code) and e.type == "invalid_request_error" and e.message, e
    else:
        raise AssertionError(f"no {kind.__name__}")


@check
def errors():
    def create(base=native, model="test", prompt="a", **params):
        return lambda: base.completions.create(model=model, prompt=prompt, **params)

    fails(openai.NotFoundError, 404, "model_not_found", create(model="gpt-9"))
    fails(openai.NotFoundError, 404, "model_not_found", lambda: native.models.retrieve("gpt-9"))
    fails(openai.NotFoundError, 404, "invalid_request", lambda: native.embeddings.create(model="test", input="a"))
    fails(openai.BadRequestError, 400, "unsupported_parameter", create(presence_penalty=1.0))
    fails(openai.BadRequestError, 400, "unsupported_parameter", create(extra_body={"top_k": 4}))
    fails(openai.BadRequestError, 400, "unsupported_parameter", create(echo=True))
    fails(openai.BadRequestError, 400, "context_length_exceeded", create(prompt="a" * 100))
    fails(openai.BadRequestError, 400, "context_length_exceeded", create(prompt="a" * 100, stream=True))
    fails(openai.BadRequestError, 400, "unsupported_parameter", lambda: chat("a", tools=TOOLS, tool_choice="required"))
    fails(openai.AuthenticationError, 401, "unauthorized", create(base=client(LOCKED, "wrong")))
    client(LOCKED, "secret").completions.create(model="test", prompt="a")


@check
def error_in_a_stream():
    said = ""
    try:
        for event in scripted.completions.create(model="test", prompt="break after this", stream=True):
            said += event.choices[0].text
    except openai.APIError as e:
        assert "the model broke" in e.message and said == "thi", (e.message, said)
    else:
        raise AssertionError("no error")


@check
def cancelled():
    """Leaves in the middle of a stream. That the server notices is checked there."""

    async def leave():
        async with openai.AsyncOpenAI(base_url=SCRIPTED, api_key="none", max_retries=0) as a:
            stream = await a.completions.create(model="test", prompt="wait after this", stream=True)
            said = ""
            async for event in stream:
                said += event.choices[0].text
                if said == "thi":  # the policy waits behind it
                    break
            await stream.close()

    asyncio.run(leave())


for f in checks:
    error = None
    try:
        f()
    except Exception:
        error = traceback.format_exc()
    print(json.dumps({"name": f.__name__, "error": error}), flush=True)
