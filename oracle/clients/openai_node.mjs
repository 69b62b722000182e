// OpenAI's own JavaScript client against a running server.
//
// Usage: node openai_node.mjs URL   (see openai_python.py)

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0, timeout: 120_000});
const model = (await client.models.list()).data[0].id;
const user = text => [{role: "user", content: text}];
const force = (...tokens) => user("force: " + JSON.stringify(tokens));
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Current weather for a city",
    parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]},
  },
};

async function chats() {
  const reply = await client.chat.completions.create({model, messages: user("What's 17+25?"), temperature: 0});
  assert.equal(reply.choices[0].message.content, "42");
  let text = "";
  for await (const chunk of await client.chat.completions.create({model, messages: user("What's 17+25?"), temperature: 0, stream: true})) {
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.equal(text, "42");
  const stream = client.chat.completions.stream({model, messages: user("What's 17+25?"), temperature: 0});
  assert.equal(await stream.finalContent(), "42");
}

async function tools() {
  const two = ["Paris", "Rome"].map(city => `<|tool_call>call:get_weather{city:<|"|>${city}<|"|>}<tool_call|>`).join("");
  const stream = client.chat.completions.stream({model, messages: force(two), tools: [weather]});
  const message = await stream.finalMessage();
  assert.deepEqual(message.tool_calls.map(call => JSON.parse(call.function.arguments).city), ["Paris", "Rome"]);
  // The helper runs the function and asks again with its result.
  const asked = [];
  const runner = client.chat.completions.runTools({
    model, temperature: 0, messages: user("What is the weather in Paris right now?"),
    tools: [{type: "function", function: {...weather.function, parse: JSON.parse, function: ({city}) => { asked.push(city); return "21 C, sunny"; }}}],
  });
  assert.match(await runner.finalContent(), /21/);
  assert.deepEqual(asked, ["Paris"]);
}

async function leaving() {
  const stream = await client.chat.completions.create({model, messages: force("word ".repeat(500)), max_tokens: 1000, stream: true});
  let seen = 0;
  for await (const _ of stream) if (++seen === 3) break;
  assert.equal(seen, 3);
}

async function errors() {
  await assert.rejects(client.chat.completions.create({model, messages: user("x"), temperature: 9}),
    error => error instanceof OpenAI.BadRequestError && error.param === "temperature");
}

async function responses() {
  const reply = await client.responses.create({model, input: "What's 17+25?", temperature: 0});
  assert.equal(reply.output_text, "42");
}

for (const part of [chats, tools, leaving, errors, responses]) {
  await part();
  console.log(`${part.name}: passed`);
}
