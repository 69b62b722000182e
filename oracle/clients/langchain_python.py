"""langchain-openai against a running server: invoke, stream, bound tools, a whole turn with a result.

Usage: langchain_python.py URL   (see openai_python.py)
"""

import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", model="small", temperature=0, max_retries=0, timeout=120)


@tool
def get_weather(city: str) -> str:
    """Current weather for a city"""
    return "21 C, sunny"


def chats():
    reply = model.invoke("What's 17+25?")
    assert reply.content == "42" and reply.usage_metadata["output_tokens"] > 0, reply
    assert "".join(chunk.content for chunk in model.stream("What's 17+25?")) == "42"
    assert [one.content for one in model.batch(["What's 17+25?", "What's 2+3?"])] == ["42", "5"]


def tools():
    bound = model.bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Paris right now?")]
    reply = bound.invoke(messages)
    call = reply.tool_calls[0]
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}), reply
    messages += [reply, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert "21" in bound.invoke(messages).content
    text = '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'
    whole = None
    for chunk in bound.stream("force: " + json.dumps([text])):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"] == {"city": "Oslo"}, whole


for part in (chats, tools):
    part()
    print(f"{part.__name__}: passed")
