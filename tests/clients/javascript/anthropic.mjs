// The package `@anthropic-ai/sdk`.

import Anthropic from "@anthropic-ai/sdk";

import { QUESTION, all, serve } from "./serve.mjs";

const ASK = [{ role: "user", content: QUESTION }];

const connect = ({ url }) => new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });

await serve({
  async whole(stage) {
    return await connect(stage).messages.create({ model: stage.model, messages: ASK, max_tokens: 8, temperature: 0 });
  },

  async streamed(stage) {
    const stream = connect(stage).messages.stream({
      model: stage.model,
      messages: ASK,
      max_tokens: 8,
      temperature: 0,
    });
    let text = "";
    stream.on("text", (piece) => {
      text += piece;
    });
    return { text, message: await stream.finalMessage(), seen: text };
  },

  async tools(stage) {
    const { model, question, schema } = stage;
    const client = connect(stage);
    const wanted = {
      model,
      max_tokens: 100,
      temperature: 0,
      tools: [{ name: "get_weather", description: "Weather of a city", input_schema: schema }],
    };
    const messages = [{ role: "user", content: question }];
    const first = await client.messages.create({ ...wanted, messages });
    const streamed = await client.messages.stream({ ...wanted, messages }).finalMessage();
    const call = first.content.at(-1);
    messages.push(
      { role: "assistant", content: [call] },
      { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "12 degrees" }] },
    );
    const after = await client.messages.create({ ...wanted, messages, max_tokens: 5 });
    return { reason: first.stop_reason, call, streamed: streamed.content.at(-1), after: after.content[0] };
  },

  async picture(stage) {
    const content = [
      { type: "image", source: { type: "base64", media_type: "image/png", data: stage.picture } },
      { type: "text", text: "What is it?" },
    ];
    return await connect(stage).messages.create({
      model: stage.model,
      messages: [{ role: "user", content }],
      max_tokens: 5,
    });
  },

  async leaves(stage) {
    const stream = await connect(stage).messages.create({
      model: stage.model,
      messages: ASK,
      max_tokens: stage.limit,
      stream: true,
    });
    let seen = 0;
    for await (const event of stream) {
      if (event.type === "content_block_delta") {
        seen += 1;
        stream.controller.abort();
      }
    }
    return { seen };
  },

  async counted(stage) {
    return await connect(stage).messages.countTokens({ model: stage.model, messages: ASK });
  },

  async catalog(stage) {
    return { listed: (await all(connect(stage).models.list())).map((each) => each.id) };
  },

  async unknown(stage) {
    await connect(stage).messages.create({ model: "nope", messages: ASK, max_tokens: 8 });
  },

  async unknown_streamed(stage) {
    await connect(stage).messages.stream({ model: "nope", messages: ASK, max_tokens: 8 }).finalMessage();
  },

  async several(stage) {
    const client = connect(stage);
    const wanted = { model: stage.model, messages: ASK, max_tokens: 2 };
    for (let round = 0; round < 2; round += 1) {
      await client.messages.create(wanted);
      await all(await client.messages.create({ ...wanted, stream: true }));
      await client.messages.create({ ...wanted, model: "nope" }).catch(() => null);
    }
  },
});
