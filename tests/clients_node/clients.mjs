// openai-node and the Vercel AI SDK, unchanged, against a gateway over scripted workers.
// From the repository: npm --prefix tests/clients_node install && npm --prefix tests/clients_node test
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // it does not know the model's name

const MODEL = "batuta-ultra";
const TEXT = "Say something.";
let failed = 0;

async function check(name, run) {
  try {
    await run();
    console.log("ok  ", name);
  } catch (error) {
    failed += 1;
    console.log("FAIL", name, "-", String(error.message ?? error).slice(0, 500));
  }
}

async function openaiNode(baseURL) {
  const api = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const messages = [{ role: "user", content: TEXT }];
  await check("openai-node chat", async () => {
    const got = await api.chat.completions.create({ model: MODEL, messages });
    assert.ok(got.choices[0].message.content);
  });
  await check("openai-node chat, streamed", async () => {
    assert.ok(await api.chat.completions.stream({ model: MODEL, messages }).finalContent());
  });
  await check("openai-node responses", async () => {
    const got = await api.responses.create({ model: MODEL, input: TEXT });
    assert.equal(got.status, "completed");
    assert.ok(got.output_text);
  });
  await check("openai-node responses, streamed", async () => {
    const stream = api.responses.stream({ model: MODEL, input: TEXT });
    let number = 0;
    for await (const event of stream) assert.equal(event.sequence_number, number++);
    assert.ok((await stream.finalResponse()).output_text);
  });
  await check("openai-node responses, in the background", async () => {
    let got = await api.responses.create({ model: MODEL, input: TEXT, background: true });
    while (["queued", "in_progress"].includes(got.status)) {
      await new Promise((wake) => setTimeout(wake, 20));
      got = await api.responses.retrieve(got.id);
    }
    assert.equal(got.status, "completed");
    let last;
    const again = await api.responses.retrieve(got.id, { stream: true, starting_after: 2 });
    for await (const event of again) last = event;
    assert.equal(last.type, "response.completed");
  });
  await check("openai-node errors", async () => {
    const wrong = api.responses.create({ model: "nobody", input: TEXT });
    await assert.rejects(wrong, OpenAI.NotFoundError);
  });
}

async function aiSdk(name, model) {
  const weather = tool({
    description: "The weather.",
    inputSchema: z.object({ city: z.string() }),
    execute: async () => "sunny",
  });
  const asked = { model, prompt: TEXT, maxRetries: 0 };
  const working = { ...asked, tools: { weather }, stopWhen: stepCountIs(4) };
  const told = async (options) => {
    const onError = ({ error }) => {
      throw error;
    };
    let text = "";
    const stream = streamText({ ...options, onError });
    for await (const part of stream.textStream) text += part;
    return [text, await stream.reasoningText];
  };
  await check(`ai ${name} text`, async () => {
    const got = await generateText(asked);
    assert.ok(got.text && got.usage.totalTokens > 0);
  });
  await check(`ai ${name} text, streamed`, async () => {
    const [text, progress] = await told(asked);
    assert.ok(text);
    if (name === "responses") assert.ok(progress.startsWith("Plan: 2 steps"));
  });
  await check(`ai ${name} tools over several turns`, async () => {
    const got = await generateText(working);
    assert.ok(got.steps.length >= 2 && got.text.includes("sunny"));
  });
  await check(`ai ${name} tools over several turns, streamed`, async () => {
    assert.ok((await told(working))[0].includes("sunny"));
  });
  await check(`ai ${name} object`, async () => {
    const schema = z.object({ name: z.string(), age: z.number() });
    const got = await generateObject({ ...asked, schema });
    assert.ok(got.object.name && Number.isInteger(got.object.age));
  });
}

const python = process.env.PYTHON ?? "../../.venv/bin/python";
const server = spawn(python, ["server.py"], { cwd: import.meta.dirname });
server.stderr.pipe(process.stderr);
const [line] = await once(server.stdout, "data");
const baseURL = `${String(line).trim()}/v1`;
try {
  await openaiNode(baseURL);
  const openai = createOpenAI({ baseURL, apiKey: "none" });
  await aiSdk("responses", openai.responses(MODEL));
  await aiSdk("chat", openai.chat(MODEL));
  await aiSdk("anthropic", createAnthropic({ baseURL, apiKey: "none" })(MODEL));
} finally {
  server.kill();
}
process.exit(failed ? 1 : 0);
