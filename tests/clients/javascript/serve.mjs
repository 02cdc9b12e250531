// The conversation that every program here has with the tests: a question per line on stdin, an answer per line on
// stdout. Whatever a library prints goes to stderr.

import { createInterface } from "node:readline";

console.log = console.info = console.debug = console.error;

export const QUESTION = "Count from one to five.";

/** Answers questions with the functions in `checks` until stdin ends. */
export async function serve(checks) {
  for await (const line of createInterface({ input: process.stdin })) {
    const question = JSON.parse(line);
    let answer;
    try {
      answer = { result: (await checks[question.check](question)) ?? null };
    } catch (thrown) {
      answer = { thrown: described(thrown) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0); // connections that are kept alive keep the process alive too
}

function described(thrown) {
  const kinds = [];
  for (let each = Object.getPrototypeOf(thrown); each !== null; each = Object.getPrototypeOf(each)) {
    kinds.push(each.constructor.name);
  }
  const status = thrown.status ?? thrown.status_code ?? thrown.statusCode ?? null;
  const body = thrown.responseBody ?? "";
  return { kinds, status, body, message: String(thrown.message), stack: String(thrown.stack) };
}

/** Everything that an async iterable gives. */
export async function all(parts) {
  const seen = [];
  for await (const part of parts) {
    seen.push(part);
  }
  return seen;
}
