// Asks a running `ptero serve` with OpenAI's own client for JavaScript: streams, schemas, functions, responses, errors.
//
//     npm install openai
//     ptero serve --chat-template conformance/openai_chat.jinja
//     node conformance/openai_client.mjs http://127.0.0.1:8080/v1
//
// NODE_MODULES is the folder of the package, if it is not beside this file.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(pathToFileURL(process.env.NODE_MODULES ? `${process.env.NODE_MODULES}/` : import.meta.url));
const { default: OpenAI } = await import(pathToFileURL(require.resolve('openai')));

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'user', content: 'What is the weather in Rome?' }];
const parameters = {
  type: 'object',
  properties: { unit: { enum: ['C', 'F'] }, days: { type: 'integer', minimum: 1, maximum: 9 } },
  required: ['unit', 'days'],
  additionalProperties: false,
};
const weather = { name: 'weather', description: 'The weather of the next days', parameters };

function checkArguments(text) {
  const { unit, days, ...others } = JSON.parse(text);
  assert(['C', 'F'].includes(unit) && days >= 1 && days <= 9);
  assert.deepEqual(others, {});
}

async function refused(kind, param, ask) {
  await assert.rejects(ask, (error) => {
    assert(error instanceof kind, `${error}`);
    assert.equal(error.param, param);
    return true;
  });
}

// Completions.
const prompt = { model, prompt: 'Once upon a time', seed: 7, max_tokens: 12 };
const text = (await client.completions.create(prompt)).choices[0].text;
let pieces = '';
for await (const piece of await client.completions.create({ ...prompt, stream: true })) pieces += piece.choices[0]?.text ?? '';
assert.equal(pieces, text);
await refused(OpenAI.BadRequestError, 'echo', () => client.completions.create({ ...prompt, echo: true }));
await refused(OpenAI.NotFoundError, 'model', () => client.completions.create({ ...prompt, model: 'other' }));

// Conversations and schemas.
const chat = { model, messages, seed: 1, max_completion_tokens: 8 };
const reply = await client.chat.completions.create(chat);
const runner = client.chat.completions.stream(chat);
assert.equal((await runner.finalChatCompletion()).choices[0].message.content, reply.choices[0].message.content);
const schema = { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'], additionalProperties: false };
const format = { type: 'json_schema', json_schema: { name: 'verdict', schema, strict: true } };
const shaped = await client.chat.completions.parse({ ...chat, max_completion_tokens: 60, response_format: format });
assert.equal(typeof JSON.parse(shaped.choices[0].message.content).ok, 'boolean');

// Functions.
const tools = [{ type: 'function', function: weather }];
const calling = { ...chat, max_completion_tokens: 200, tools, tool_choice: 'required', parallel_tool_calls: false };
const called = (await client.chat.completions.create(calling)).choices[0];
assert.equal(called.finish_reason, 'tool_calls');
checkArguments(called.message.tool_calls[0].function.arguments);
const streamed = (await client.chat.completions.stream(calling).finalChatCompletion()).choices[0];
assert.equal(streamed.message.tool_calls[0].function.arguments, called.message.tool_calls[0].function.arguments);
const answered = [...messages, called.message, { role: 'tool', tool_call_id: called.message.tool_calls[0].id, content: '21' }];
await client.chat.completions.create({ ...chat, messages: answered, tools });

// Responses.
const input = { model, input: 'Once upon a time', instructions: 'Tell a story.', max_output_tokens: 10, seed: 3 };
const whole = await client.responses.create(input);
assert.equal(whole.status, 'incomplete');
let deltas = '';
for await (const event of await client.responses.create({ ...input, stream: true })) {
  if (event.type === 'response.output_text.delta') deltas += event.delta;
}
assert.equal(deltas, whole.output_text);
assert.equal((await client.responses.stream(input).finalResponse()).output_text, whole.output_text);
const function_call = (await client.responses.create({
  ...input, max_output_tokens: 200, tools: [{ type: 'function', ...weather }], tool_choice: 'required', parallel_tool_calls: false,
})).output[0];
checkArguments(function_call.arguments);
await refused(OpenAI.BadRequestError, 'previous_response_id', () => client.responses.create({ ...input, previous_response_id: 'x' }));

// A client that leaves.
const controller = new AbortController();
for await (const _ of await client.completions.create({ ...prompt, max_tokens: 200, stream: true }, { signal: controller.signal })) break;
controller.abort();
console.log("completions, conversations, functions and responses: as OpenAI's client for JavaScript expects");
