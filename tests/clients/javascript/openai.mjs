// The package `openai`.

import OpenAI from "openai";

import { QUESTION, all, serve } from "./serve.mjs";

const ASK = [{ role: "user", content: QUESTION }];
const COLD = { temperature: 0, seed: 1 };

const connect = ({ url }) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });

await serve({
  async whole(stage) {
    return await connect(stage).chat.completions.create({ model: stage.model, messages: ASK, max_tokens: 8, ...COLD });
  },

  async streamed(stage) {
    const chunks = await all(
      await connect(stage).chat.completions.create({
        model: stage.model,
        messages: ASK,
        max_tokens: 8,
        ...COLD,
        stream: true,
        stream_options: { include_usage: true },
      }),
    );
    return {
      text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""),
      reasons: chunks.map((chunk) => chunk.choices[0]?.finish_reason ?? null),
      usage: chunks.at(-1).usage,
    };
  },

  async tools(stage) {
    const { model, question, schema } = stage;
    const client = connect(stage);
    const tools = [
      { type: "function", function: { name: "get_weather", description: "Weather of a city", parameters: schema } },
    ];
    const messages = [{ role: "user", content: question }];
    const first = await client.chat.completions.create({ model, messages, tools, ...COLD });
    const chunks = await all(await client.chat.completions.create({ model, messages, tools, ...COLD, stream: true }));
    const pieces = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
    const message = first.choices[0].message;
    messages.push(message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "12 degrees" });
    const after = await client.chat.completions.create({ model, messages, tools, max_tokens: 5, ...COLD });
    return {
      reason: first.choices[0].finish_reason,
      calls: message.tool_calls,
      streamed: {
        name: pieces.map((piece) => piece.function?.name ?? "").join(""),
        arguments: pieces.map((piece) => piece.function?.arguments ?? "").join(""),
      },
      after: after.choices[0].message.content,
    };
  },

  async structured(stage) {
    const answer = await connect(stage).chat.completions.parse({
      model: stage.model,
      messages: ASK,
      max_tokens: 300,
      temperature: 0,
      response_format: { type: "json_schema", json_schema: { name: "thing", schema: stage.schema } },
    });
    return JSON.parse(answer.choices[0].message.content);
  },

  async embeddings(stage) {
    const client = connect(stage);
    const two = await client.embeddings.create({ model: stage.embedder, input: ["hello", "there"] });
    const one = await client.embeddings.create({ model: stage.embedder, input: "hello", encoding_format: "float" });
    return { embeddings: two.data.map((each) => each.embedding), embedding: one.data[0].embedding };
  },

  async picture(stage) {
    const content = [
      { type: "text", text: "What is it?" },
      { type: "image_url", image_url: { url: `data:image/png;base64,${stage.picture}` } },
    ];
    return await connect(stage).chat.completions.create({
      model: stage.model,
      messages: [{ role: "user", content }],
      max_tokens: 5,
    });
  },

  async responses(stage) {
    const wanted = { model: stage.model, input: "hi", max_output_tokens: 6, temperature: 0 };
    const whole = await connect(stage).responses.create(wanted);
    const events = await all(await connect(stage).responses.create({ ...wanted, stream: true }));
    return { text: whole.output_text, usage: whole.usage, events: events.map((event) => event.type) };
  },

  async leaves(stage) {
    const stream = await connect(stage).chat.completions.create({
      model: stage.model,
      messages: ASK,
      max_tokens: stage.limit,
      stream: true,
    });
    let seen = 0;
    for await (const _ of stream) {
      seen += 1;
      stream.controller.abort();
    }
    return { seen };
  },

  async catalog(stage) {
    const models = await all(connect(stage).models.list());
    return { listed: models.map((each) => each.id), one: (await connect(stage).models.retrieve(models[0].id)).id };
  },

  async unknown(stage) {
    await connect(stage).chat.completions.create({ model: "nope", messages: ASK });
  },

  async unknown_streamed(stage) {
    await all(await connect(stage).chat.completions.create({ model: "nope", messages: ASK, stream: true }));
  },

  async several(stage) {
    const client = connect(stage);
    const wanted = { model: stage.model, messages: ASK, max_tokens: 2 };
    for (let round = 0; round < 2; round += 1) {
      await client.chat.completions.create(wanted);
      await all(await client.chat.completions.create({ ...wanted, stream: true }));
      await client.models.retrieve("nope").catch(() => null);
    }
  },
});
