// The AI SDK with its provider for compatible servers against a running server.
//
// Usage: node ai_sdk.mjs URL   (see openai_python.py)

import assert from "node:assert/strict";
import {createOpenAICompatible} from "@ai-sdk/openai-compatible";
import {generateText, stepCountIs, streamText, tool} from "ai";
import {z} from "zod";

const model = createOpenAICompatible({name: "w4pack", baseURL: process.argv[2] + "/v1", includeUsage: true})("small");
const common = {model, temperature: 0, maxRetries: 0};

async function chats() {
  const {text, usage} = await generateText({...common, prompt: "What's 17+25?"});
  assert.equal(text, "42");
  assert.ok(usage.outputTokens > 0 && usage.inputTokens > 0);
  const stream = streamText({...common, prompt: "What's 17+25?"});
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  assert.equal(streamed, "42");
  assert.equal((await stream.usage).outputTokens, usage.outputTokens);
}

async function reasoning() {
  const {reasoningText, text} = await generateText({...common, prompt: "What's 17+25?", providerOptions: {w4pack: {reasoningEffort: "low"}}});
  assert.ok(reasoningText);
  assert.equal(text, "42");
}

async function tools() {
  const asked = [];
  const weather = tool({
    description: "Current weather for a city",
    inputSchema: z.object({city: z.string()}),
    execute: async ({city}) => { asked.push(city); return "21 C, sunny"; },
  });
  const {text} = await generateText({...common, prompt: "What is the weather in Paris right now?", tools: {get_weather: weather}, stopWhen: stepCountIs(3)});
  assert.deepEqual(asked, ["Paris"]);
  assert.match(text, /21/);
}

for (const part of [chats, reasoning, tools]) {
  await part();
  console.log(`${part.name}: passed`);
}
