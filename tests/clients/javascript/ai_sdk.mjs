// The packages `ai` and `ollama-ai-provider-v2`.

import { Output, embed, embedMany, generateText, jsonSchema, isStepCount, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";

import { QUESTION, all, serve } from "./serve.mjs";

// The provider sends `maxOutputTokens` and `temperature` where no Ollama looks for them; this way they arrive.
const limit = (tokens) => ({
  maxRetries: 0,
  providerOptions: { ollama: { options: { num_predict: tokens, temperature: 0, seed: 1 } } },
});

const connect = ({ url }) => createOllama({ baseURL: `${url}/api` });

await serve({
  async whole(stage) {
    const answer = await generateText({
      model: connect(stage)(stage.model),
      prompt: QUESTION,
      ...limit(8),
    });
    return { text: answer.text, reason: answer.finishReason, usage: answer.usage };
  },

  async streamed(stage) {
    const answer = streamText({ model: connect(stage)(stage.model), prompt: QUESTION, ...limit(8) });
    const pieces = await all(answer.textStream);
    return { text: pieces.join(""), reason: await answer.finishReason, usage: await answer.usage };
  },

  async tools(stage) {
    const asked = [];
    const answer = await generateText({
      model: connect(stage)(stage.model),
      prompt: stage.question,
      stopWhen: isStepCount(2),
      ...limit(100),
      tools: {
        get_weather: tool({
          description: "Weather of a city",
          inputSchema: jsonSchema(stage.schema),
          execute: async (input) => {
            asked.push(input);
            return "12 degrees";
          },
        }),
      },
    });
    return { asked, steps: answer.steps.map((step) => step.finishReason), text: answer.text };
  },

  async structured(stage) {
    const answer = await generateText({
      model: connect(stage)(stage.model),
      prompt: "A thing as JSON",
      ...limit(300),
      output: Output.object({ schema: jsonSchema(stage.schema) }),
    });
    return answer.output;
  },

  async embeddings(stage) {
    const model = connect(stage).embedding(stage.embedder);
    const two = await embedMany({ model, values: ["hello", "there"], maxRetries: 0 });
    const one = await embed({ model, value: "hello", maxRetries: 0 });
    return { embeddings: two.embeddings, embedding: one.embedding };
  },

  async picture(stage) {
    const content = [
      { type: "text", text: "What is it?" },
      { type: "image", image: stage.picture, mediaType: "image/png" },
    ];
    const messages = [{ role: "user", content }];
    const answer = await generateText({
      model: connect(stage)(stage.model),
      messages,
      ...limit(5),
    });
    return answer.text;
  },

  async leaves(stage) {
    const leaving = new AbortController();
    const answer = streamText({
      model: connect(stage)(stage.model),
      prompt: QUESTION,
      ...limit(stage.limit),
      abortSignal: leaving.signal,
    });
    let seen = 0;
    for await (const _ of answer.textStream) {
      seen += 1;
      leaving.abort();
    }
    return { seen };
  },

  async unknown(stage) {
    await generateText({ model: connect(stage)("nope"), prompt: QUESTION, maxRetries: 0 });
  },

  async several(stage) {
    const wanted = { model: connect(stage)(stage.model), prompt: QUESTION, ...limit(2) };
    for (let round = 0; round < 3; round += 1) {
      await generateText(wanted);
      await all(streamText(wanted).textStream);
    }
  },
});
