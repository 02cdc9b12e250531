// The package `@langchain/ollama`.

import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOllama, Ollama, OllamaEmbeddings } from "@langchain/ollama";

import { QUESTION, all, serve } from "./serve.mjs";

const chat = ({ url, model }, more) =>
  new ChatOllama({ baseUrl: url, model, numPredict: 8, seed: 1, temperature: 0, maxRetries: 0, ...more });

await serve({
  async whole(stage) {
    const answer = await chat(stage).invoke(QUESTION);
    return { text: answer.content, usage: answer.usage_metadata };
  },

  async streamed(stage) {
    const parts = await all(await chat(stage).stream(QUESTION));
    return { text: parts.map((part) => part.content).join(""), usage: parts.at(-1).usage_metadata };
  },

  async generated({ url, model }) {
    return await new Ollama({ baseUrl: url, model, numPredict: 5, maxRetries: 0 }).invoke("Once upon a time");
  },

  async tools(stage) {
    const getWeather = tool(async ({ city }) => `12 degrees in ${city}`, {
      name: "get_weather",
      description: "Weather of a city",
      schema: stage.schema,
    });
    const model = chat(stage, { numPredict: 100 }).bindTools([getWeather]);
    const first = await model.invoke(stage.question);
    const parts = await all(await model.stream(stage.question));
    const [call] = first.tool_calls;
    const result = new ToolMessage({ content: await getWeather.invoke(call.args), tool_call_id: call.id ?? "" });
    const after = await chat(stage).bindTools([getWeather]).invoke([new HumanMessage(stage.question), first, result]);
    return {
      calls: first.tool_calls,
      streamed: parts.flatMap((part) => part.tool_calls ?? []),
      after: after.content,
    };
  },

  async structured(stage) {
    const model = chat(stage, { numPredict: 300 }).withStructuredOutput(stage.schema, { method: "jsonSchema" });
    return await model.invoke("A thing as JSON");
  },

  async embeddings({ url, embedder }) {
    const model = new OllamaEmbeddings({ baseUrl: url, model: embedder, maxRetries: 0 });
    return { embeddings: await model.embedDocuments(["hello", "there"]), embedding: await model.embedQuery("hello") };
  },

  async picture(stage) {
    const content = [
      { type: "text", text: "What is it?" },
      { type: "image_url", image_url: `data:image/png;base64,${stage.picture}` },
    ];
    return (await chat(stage).invoke([new HumanMessage({ content })])).content;
  },

  async leaves(stage) {
    const model = chat(stage, { numPredict: stage.limit });
    let seen = 0;
    try {
      for await (const _ of await model.stream(QUESTION)) {
        seen += 1;
        model.client.abort(); // a `signal` among the options ends the iteration, but leaves the connection open
      }
    } catch (thrown) {
      return { seen, thrown: thrown.name };
    }
    return { seen, thrown: null };
  },

  async unknown(stage) {
    await chat({ ...stage, model: "nope" }).invoke(QUESTION);
  },

  async several(stage) {
    const model = chat(stage);
    for (let round = 0; round < 3; round += 1) {
      await model.invoke(QUESTION);
      await all(await model.stream(QUESTION));
    }
  },
});
