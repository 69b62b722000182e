"""OpenAI's own Python client against a running server: chats, streams, tools, JSON, completions, responses.

Usage: openai_python.py URL   (the server forces outputs by messages `force: […]`, see runtime/examples/serve_forced.rs)
"""

import json
import sys

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=120)
MODEL = client.models.list().data[0].id
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def user(text):
    return [{"role": "user", "content": text}]


def force(*tokens):
    return user("force: " + json.dumps(tokens))


def chat(messages, **more):
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **more)


def chats():
    reply = chat(user("What's 17+25?"))
    assert reply.choices[0].message.content == "42", reply
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    chunks = list(chat(user("What's 17+25?"), stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "42"
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
    thinking = chat(user("What's 17+25?"), reasoning_effort="low")
    assert thinking.choices[0].message.reasoning_content, thinking
    assert thinking.choices[0].message.content == "42"


def stream_helper():
    with client.chat.completions.stream(model=MODEL, messages=user("What's 17+25?"), temperature=0, logprobs=True) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds, kinds
    assert final.choices[0].message.content == "42"
    assert "".join(token.token for token in final.choices[0].logprobs.content) == "42"


def tools():
    messages = user("What is the weather in Paris right now?")
    reply = chat(messages, tools=[WEATHER]).choices[0]
    assert reply.finish_reason == "tool_calls", reply
    call = reply.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    # The message goes back as the client dumps it.
    messages += [reply.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21 C, sunny"}]
    assert "21" in chat(messages, tools=[WEATHER]).choices[0].message.content
    two = "".join(f'<|tool_call>call:get_weather{{city:<|"|>{city}<|"|>}}<tool_call|>' for city in ("Paris", "Rome"))
    with client.chat.completions.stream(model=MODEL, messages=force(two), tools=[WEATHER]) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert [json.loads(event.arguments)["city"] for event in done] == ["Paris", "Rome"]
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Paris", "Rome"]
    assert calls[0].id != calls[1].id


def demanded():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        reply = chat(user("What's 17+25?"), tools=[WEATHER], tool_choice=choice, max_tokens=200).choices[0]
        if reply.finish_reason != "length":
            assert set(json.loads(reply.message.tool_calls[0].function.arguments)) == {"city"}, reply


class Sum(BaseModel):
    left: int
    right: int
    total: int


def structured():
    reply = client.chat.completions.parse(
        model=MODEL, messages=force('{"left": 17, "right": 25, "total": 42}'), response_format=Sum, temperature=0
    )
    assert reply.choices[0].message.parsed == Sum(left=17, right=25, total=42)


def held():
    reply = client.chat.completions.create(
        model=MODEL,
        messages=user("What's 17+25?"),
        temperature=0,
        max_tokens=300,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "strict": True,
                "schema": {"type": "object", "properties": {"total": {"enum": [41, 42]}}, "required": ["total"], "additionalProperties": False},
            },
        },
    ).choices[0]
    assert json.loads(reply.message.content)["total"] in (41, 42), reply


def errors():
    for wrong, kind in [
        (dict(temperature=9), openai.BadRequestError),
        (dict(model="absent"), openai.NotFoundError),
        (dict(messages=user("7" * 20000)), openai.BadRequestError),
    ]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": user("x"), **wrong})
        except kind as error:
            assert error.body["message"] and error.code, error
        else:
            raise AssertionError(f"{wrong} was accepted")


def completions():
    prompt = "<|turn>user\nWhat's 17+25?<turn|>\n<|turn>model\n"
    reply = client.completions.create(model=MODEL, prompt=prompt, temperature=0, logprobs=1)
    assert reply.choices[0].text == "42" and reply.choices[0].logprobs.tokens
    stream = client.completions.create(model=MODEL, prompt=prompt, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "42"


def responses():
    reply = client.responses.create(model=MODEL, input="What's 17+25?", temperature=0)
    assert reply.output_text == "42" and reply.status == "completed", reply
    with client.responses.stream(model=MODEL, input="What's 17+25?", temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    assert final.output_text == "42"
    tool = {"type": "function", **WEATHER["function"]}
    asked = [{"role": "user", "content": "What is the weather in Paris right now?"}]
    reply = client.responses.create(model=MODEL, input=asked, tools=[tool], temperature=0)
    call = reply.output[0]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    asked += reply.output + [{"type": "function_call_output", "call_id": call.call_id, "output": "21 C, sunny"}]
    assert "21" in client.responses.create(model=MODEL, input=asked, tools=[tool], temperature=0).output_text


for part in (chats, stream_helper, tools, demanded, structured, held, errors, completions, responses):
    part()
    print(f"{part.__name__}: passed")
