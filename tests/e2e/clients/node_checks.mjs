// Drives a gateway with the official OpenAI SDK for Node.
//
//     NODE_CHECKS_MODULES=FOLDER node node_checks.mjs BASE_URL MODEL [--key KEY] [--refuses FEATURE,...] [--only NAME,...]
//
// FOLDER holds node_modules/openai (default: where this script stands). Prints `ok name`, `skip name: why` or
// `FAIL name: why` per check; the exit code is the number of failures.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const require = createRequire(join(process.env.NODE_CHECKS_MODULES ?? import.meta.dirname, 'package.json'));
const OpenAI = require('openai').default;

const PARAMS = { images: 'messages', json_schema: 'response_format', logprobs: 'logprobs', tool_choice: 'tool_choice', tools: 'tools' };
const LONG_ANSWER = 1500; // tokens: many seconds of work, so that an abandoned call is seen to end early
const PIXEL =
  'data:image/png;base64,' +
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const PAINT = {
  type: 'object',
  properties: {
    colour: { type: 'string', enum: ['red', 'green', 'blue'] },
    count: { type: 'integer' },
    bright: { type: 'boolean' },
  },
  required: ['colour', 'count', 'bright'],
  additionalProperties: false,
};
const WEATHER = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The weather in a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};

const { values: given, positionals } = parseArgs({
  allowPositionals: true,
  options: { key: { type: 'string' }, refuses: { type: 'string', default: '' }, eos: { type: 'string', default: '2' }, only: { type: 'string' } },
});
const [baseURL, model] = positionals;
const refuses = given.refuses.split(',').filter(Boolean);
assert(baseURL && model, 'usage: node_checks.mjs BASE_URL MODEL [--key KEY] [--refuses FEATURE,...] [--only NAME,...]');
assert(refuses.every((feature) => feature in PARAMS), `--refuses takes of ${Object.keys(PARAMS)}`);
const key = given.key ?? 'none';
const client = new OpenAI({ baseURL, apiKey: key, maxRetries: 0, timeout: 120_000 });

class Skip extends Error {}
let told = [];

const chat = (changes = {}) => ({
  model,
  messages: [{ role: 'user', content: 'Name three colours, please.' }],
  max_tokens: 16,
  temperature: 0,
  ...changes,
});
const endless = () => ({ max_tokens: LONG_ANSWER, logit_bias: { [given.eos]: -100 } });
const textOf = (chunks) => chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? '')).join('');
const sorted = (object) => Object.keys(object).sort();

function proper(text) {
  assert(typeof text === 'string' && text.trim(), `the answer is empty: ${JSON.stringify(text)}`);
  assert(!text.includes('\ufffd'), `the answer holds a broken character: ${text}`);
  return text;
}

async function collected(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

/** The error of this class, status and param with which `call` must end. */
async function raised(kind, status, param, call) {
  try {
    await call();
  } catch (error) {
    assert(error instanceof kind, `${error?.constructor?.name} in place of ${kind.name}: ${error}`);
    assert.equal(error.status, status);
    if (param !== undefined) assert.equal(error.param, param);
    if (status !== undefined) assert(error.error?.message, `no envelope: ${JSON.stringify(error.error)}`);
    return error;
  }
  throw new Error(`${kind.name} was not raised`);
}

/** Run a block that uses these features; where the engine refuses one, the block must end in a clear 400. */
async function mayRefuse(features, block) {
  const refused = features.filter((feature) => refuses.includes(feature));
  if (!refused.length) return block();
  const error = await raised(OpenAI.BadRequestError, 400, undefined, block);
  assert(refused.some((feature) => PARAMS[feature] === error.param), `the refusal names ${error.param}: ${error.message}`);
  told.push(`refused as documented: ${refused}`);
}

async function busy() {
  const answer = await fetch(`${baseURL.replace(/\/v1$/, '')}/metrics`, { headers: { authorization: `Bearer ${key}` } });
  const figures = [...(await answer.text()).matchAll(/^enginehouse_(?:in_flight|engine_running|engine_waiting)\{[^}]*\} (\S+)$/gm)];
  assert(figures.length, '/metrics shows no calls in flight');
  return figures.reduce((sum, [, figure]) => sum + Number(figure), 0);
}

async function untilIdle() {
  const deadline = performance.now() + 10_000;
  while (await busy()) {
    assert(performance.now() < deadline, 'the engine still works on a call that nobody waits for');
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}

const checks = {
  async chat() {
    const answer = await client.chat.completions.create(chat());
    proper(answer.choices[0].message.content);
    assert.equal(answer.object, 'chat.completion');
    assert.equal(answer.model, model);
    assert(['stop', 'length'].includes(answer.choices[0].finish_reason), answer.choices[0].finish_reason);
    assert(answer.usage.prompt_tokens > 0 && answer.usage.completion_tokens > 0);
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
  async stream() {
    const chunks = await collected(await client.chat.completions.create(chat({ stream: true })));
    const whole = await client.chat.completions.create(chat());
    assert.equal(proper(textOf(chunks)), whole.choices[0].message.content);
    assert(chunks.every((chunk) => chunk.choices.length && !chunk.usage), 'usage came unasked');
    assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
    const finishes = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.finish_reason)).filter(Boolean);
    assert.deepEqual(finishes, [whole.choices[0].finish_reason]);
  },
  async stream_with_usage() {
    const body = chat({ stream: true, stream_options: { include_usage: true } });
    const chunks = await collected(await client.chat.completions.create(body));
    const last = chunks.at(-1);
    assert.deepEqual(last.choices, []);
    assert(last.usage.completion_tokens > 0);
    assert.equal(chunks.filter((chunk) => !chunk.choices.length).length, 1);
  },
  async stream_helper() {
    const runner = client.chat.completions.stream(chat({ stream_options: { include_usage: true } }));
    let heard = '';
    runner.on('content', (delta) => (heard += delta));
    const final = await runner.finalChatCompletion();
    assert.equal(proper(final.choices[0].message.content), heard);
    assert((await runner.totalUsage()).total_tokens > 0);
  },
  async readable_stream() {
    const stream = await client.chat.completions.create(chat({ stream: true }));
    const lines = (await new Response(stream.toReadableStream()).text()).trim().split('\n');
    proper(textOf(lines.map((line) => JSON.parse(line))));
  },
  async response_headers() {
    const asked = client.chat.completions.create(chat(), { headers: { 'x-request-id': 'my-own-id' } });
    const { data, response, request_id } = await asked.withResponse();
    proper(data.choices[0].message.content);
    assert.equal(request_id, 'my-own-id');
    assert(response.headers.get('x-enginehouse-endpoint') && response.headers.get('x-enginehouse-policy'));
  },
  async parameters() {
    const body = { seed: 7, stop: ['zzzz'], top_p: 0.9, frequency_penalty: 0.1, presence_penalty: 0.1, user: 'somebody', store: false, metadata: { a: 'b' } };
    proper((await client.chat.completions.create(chat(body))).choices[0].message.content);
  },
  async max_completion_tokens() {
    const body = chat({ max_tokens: undefined, max_completion_tokens: 4, logit_bias: { [given.eos]: -100 } });
    const answer = await client.chat.completions.create(body);
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert(answer.usage.completion_tokens <= 4);
  },
  async logprobs() {
    await mayRefuse(['logprobs'], async () => {
      const answer = await client.chat.completions.create(chat({ logprobs: true, top_logprobs: 2 }));
      assert(answer.choices[0].logprobs.content[0].logprob <= 0);
    });
  },
  async json_schema() {
    const response_format = { type: 'json_schema', json_schema: { name: 'paint', strict: true, schema: PAINT } };
    await mayRefuse(['json_schema'], async () => {
      const answer = await client.chat.completions.parse(chat({ response_format, max_tokens: 120 }));
      const said = answer.choices[0].message.parsed ?? JSON.parse(answer.choices[0].message.content);
      assert.deepEqual(sorted(said), sorted(PAINT.properties));
    });
  },
  async tools() {
    await mayRefuse(['tools', 'tool_choice'], async () => {
      const answer = await client.chat.completions.create(chat({ tools: [WEATHER], tool_choice: 'required', max_tokens: 120 }));
      const [call] = answer.choices[0].message.tool_calls;
      assert.equal(call.function.name, 'weather');
      assert.deepEqual(sorted(JSON.parse(call.function.arguments)), ['city']);
      assert.equal(answer.choices[0].finish_reason, 'tool_calls');
    });
  },
  async named_tool() {
    await mayRefuse(['tools', 'tool_choice'], async () => {
      const tool_choice = { type: 'function', function: { name: 'weather' } };
      const answer = await client.chat.completions.create(chat({ tools: [WEATHER], tool_choice, max_tokens: 120 }));
      assert.equal(answer.choices[0].message.tool_calls[0].function.name, 'weather');
    });
  },
  async tools_streamed() {
    await mayRefuse(['tools', 'tool_choice'], async () => {
      const other = { ...WEATHER, function: { ...WEATHER.function, name: 'time_of_day' } };
      const body = chat({ tools: [WEATHER, other], tool_choice: 'required', max_tokens: 200 });
      const final = await client.chat.completions.stream(body).finalChatCompletion();
      const calls = final.choices[0].message.tool_calls;
      assert.equal(new Set(calls.map((call) => call.id)).size, calls.length);
      for (const call of calls) {
        assert(['weather', 'time_of_day'].includes(call.function.name), call.function.name);
        assert.deepEqual(sorted(JSON.parse(call.function.arguments)), ['city']);
      }
      assert.equal(final.choices[0].finish_reason, 'tool_calls');
    });
  },
  async results_of_tools() {
    const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{"city":"Paris"}' } };
    const messages = [
      { role: 'user', content: 'How is the weather in Paris?' },
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: 'call_1', content: 'It rains.' },
    ];
    await mayRefuse(['tools'], async () => {
      const { message } = (await client.chat.completions.create(chat({ messages, tools: [WEATHER] }))).choices[0];
      assert(message.content || message.tool_calls, JSON.stringify(message));
    });
  },
  async image() {
    const content = [{ type: 'text', text: 'What is this?' }, { type: 'image_url', image_url: { url: PIXEL } }];
    await mayRefuse(['images'], async () => {
      proper((await client.chat.completions.create(chat({ messages: [{ role: 'user', content }] }))).choices[0].message.content);
    });
  },
  async completions_route() {
    const body = { model, prompt: 'The capital of France is', max_tokens: 8, temperature: 0 };
    const whole = await client.completions.create(body);
    const chunks = await collected(await client.completions.create({ ...body, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices.map((choice) => choice.text).join('')).join(''), proper(whole.choices[0].text));
  },
  async embeddings_are_refused_clearly() {
    try {
      await client.embeddings.create({ model, input: 'hello' });
    } catch (error) {
      assert(error instanceof OpenAI.APIError && [400, 404, 501].includes(error.status), String(error));
      assert(error.error?.message.toLowerCase().includes('embed'), error.message);
      return;
    }
    throw new Error('a model that only generates embedded something');
  },
  async responses_api_is_not_served() {
    await raised(OpenAI.NotFoundError, 404, undefined, () => client.responses.create({ model, input: 'hello' }));
  },
  async models() {
    const listed = (await collected(client.models.list())).map((each) => each.id);
    assert(listed.includes(model), String(listed));
    assert.equal((await client.models.retrieve(model)).id, model);
    await raised(OpenAI.NotFoundError, 404, undefined, () => client.models.retrieve('no-such-model'));
  },
  async unknown_model() {
    for (const stream of [false, true]) {
      const ask = () => client.chat.completions.create(chat({ model: 'no-such-model', stream }));
      assert.equal((await raised(OpenAI.NotFoundError, 404, 'model', ask)).code, 'model_not_found');
    }
  },
  async bad_parameter() {
    for (const stream of [false, true]) {
      const ask = () => client.chat.completions.create(chat({ temperature: 3.5, stream }));
      assert.equal((await raised(OpenAI.BadRequestError, 400, 'temperature', ask)).type, 'invalid_request_error');
    }
  },
  async context_too_long() {
    const messages = [{ role: 'user', content: 'one two three four '.repeat(10_000) }];
    for (const stream of [false, true]) {
      const ask = () => client.chat.completions.create(chat({ messages, stream }));
      assert.equal((await raised(OpenAI.BadRequestError, 400, undefined, ask)).code, 'context_length_exceeded');
    }
  },
  async wrong_key() {
    if (given.key === undefined) throw new Skip('the gateway has no keys');
    const stranger = new OpenAI({ baseURL, apiKey: 'sk-wrong', maxRetries: 0 });
    await raised(OpenAI.AuthenticationError, 401, undefined, () => stranger.models.list());
  },
  async timeout_frees_the_engine() {
    const ask = () => client.chat.completions.create(chat({ ...endless(), stream: false }), { timeout: 1000 });
    await raised(OpenAI.APIConnectionTimeoutError, undefined, undefined, ask);
    await untilIdle();
  },
  async abort_within_a_stream_frees_the_engine() {
    const stream = await client.chat.completions.create(chat({ ...endless(), stream: true }));
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content) stream.controller.abort();
    }
    await untilIdle();
  },
  async a_signal_aborts_a_stream() {
    const controller = new AbortController();
    const ask = client.chat.completions.create(chat({ ...endless(), stream: true }), { signal: controller.signal });
    for await (const chunk of await ask) {
      if (chunk.choices[0]?.delta.content) controller.abort();
    }
    await untilIdle();
  },
  async four_parallel_streams() {
    const one = async (number) => {
      const messages = [{ role: 'user', content: `Say the number ${number}.` }];
      return proper(textOf(await collected(await client.chat.completions.create(chat({ messages, stream: true })))));
    };
    assert.equal((await Promise.all([1, 2, 3, 4].map(one))).length, 4);
  },
};

let failures = 0;
for (const [name, check] of Object.entries(checks)) {
  if (given.only && !given.only.split(',').includes(name)) continue;
  told = [];
  try {
    await check();
    console.log(`ok ${name}${told.map((word) => ` (${word})`).join('')}`);
  } catch (error) {
    if (error instanceof Skip) {
      console.log(`skip ${name}: ${error.message}`);
      continue;
    }
    failures += 1;
    console.log(`FAIL ${name}: ${error.name}: ${error.message} ${(error.stack ?? '').split('\n').filter((line) => line.includes('node_checks.mjs')).slice(0, 3).join(' ')}`);
  }
}
process.exitCode = failures;
