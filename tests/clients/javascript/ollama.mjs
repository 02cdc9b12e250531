// The package `ollama`.

import { Ollama } from "ollama";

import { QUESTION, all, serve } from "./serve.mjs";

const LIMIT = { num_predict: 8, seed: 1, temperature: 0 };
const ASK = [{ role: "user", content: QUESTION }];

const text = (parts) => parts.map((part) => part.message.content).join("");

await serve({
  async whole({ url, model }) {
    return await new Ollama({ host: url }).chat({ model, messages: ASK, options: LIMIT });
  },

  async streamed({ url, model }) {
    const parts = await all(await new Ollama({ host: url }).chat({ model, messages: ASK, options: LIMIT, stream: true }));
    return { text: text(parts), done: parts.map((part) => part.done), tokens: parts.at(-1).eval_count };
  },

  async generated({ url, model }) {
    const client = new Ollama({ host: url });
    const whole = await client.generate({ model, prompt: "Once upon a time", options: LIMIT });
    const parts = await all(
      await client.generate({ model, prompt: "Once upon a time", options: LIMIT, stream: true }),
    );
    return { whole: whole.response, streamed: parts.map((part) => part.response).join("") };
  },

  async tools({ url, model, question, schema }) {
    const client = new Ollama({ host: url });
    const tools = [
      { type: "function", function: { name: "get_weather", description: "Weather of a city", parameters: schema } },
    ];
    const messages = [{ role: "user", content: question }];
    const options = { temperature: 0 };
    const first = await client.chat({ model, messages, tools, options });
    const parts = await all(await client.chat({ model, messages, tools, options, stream: true }));
    messages.push(first.message, { role: "tool", content: "12 degrees", tool_name: "get_weather" });
    const after = await client.chat({ model, messages, tools, options: LIMIT });
    return {
      calls: first.message.tool_calls,
      streamed: parts.flatMap((part) => part.message.tool_calls ?? []),
      after: after.message.content,
    };
  },

  async structured({ url, model, schema }) {
    const options = { num_predict: 300, temperature: 0 };
    const answer = await new Ollama({ host: url }).chat({ model, messages: ASK, format: schema, options });
    return JSON.parse(answer.message.content);
  },

  async embeddings({ url, embedder }) {
    const client = new Ollama({ host: url });
    const { embeddings } = await client.embed({ model: embedder, input: ["hello", "there"] });
    const { embedding } = await client.embeddings({ model: embedder, prompt: "hello" });
    return { embeddings, embedding };
  },

  async picture({ url, model, picture }) {
    const messages = [{ role: "user", content: "What is it?", images: [picture] }];
    return await new Ollama({ host: url }).chat({ model, messages, options: LIMIT });
  },

  async leaves({ url, model, limit }) {
    const client = new Ollama({ host: url });
    const stream = await client.chat({ model, messages: ASK, options: { num_predict: limit }, stream: true });
    let seen = 0;
    try {
      for await (const _ of stream) {
        seen += 1;
        stream.abort();
      }
    } catch (thrown) {
      return { seen, thrown: thrown.name };
    }
    return { seen, thrown: null };
  },

  async catalog({ url, model }) {
    const client = new Ollama({ host: url });
    await client.generate({ model, prompt: "" }); // loads it
    const [listed, shown, running] = [await client.list(), await client.show({ model }), await client.ps()];
    return {
      listed: listed.models.map((each) => each.name),
      capabilities: shown.capabilities,
      running: running.models.map((each) => each.name),
      version: (await client.version()).version,
    };
  },

  async unknown({ url }) {
    await new Ollama({ host: url }).chat({ model: "nope", messages: ASK });
  },

  async unknown_streamed({ url }) {
    await all(await new Ollama({ host: url }).chat({ model: "nope", messages: ASK, stream: true }));
  },

  async several({ url, model }) {
    const client = new Ollama({ host: url });
    for (let round = 0; round < 2; round += 1) {
      await client.chat({ model, messages: ASK, options: LIMIT });
      await all(await client.chat({ model, messages: ASK, options: LIMIT, stream: true }));
      await client.show({ model: "nope" }).catch(() => null);
    }
  },
});
