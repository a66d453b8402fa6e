// Restate as a peer: reads a request a line, works it off with a server in the folder it names, answers a line.
//
// A pipeline is a handler with durable steps, called and waited for. Tasks are calls sent ahead of their time, all due
// at the same moment; how many of them run at once is the server's own choice.

import { createServer } from "node:http2";
import { Agent, request as ask } from "node:http";
import { createInterface } from "node:readline";
import { once } from "node:events";
import * as restate from "@restatedev/restate-sdk";
import { Server } from "./server.js";

// The SDK wants Node 22; this is all that 20 lacks for it.
Promise.withResolvers ??= function withResolvers() {
  const made = {};
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};

/** A request that takes longer has stalled. */
const PATIENCE_MS = 300_000;
/** How many enqueue at once before a drain is timed, and how long they have for it. */
const ENQUEUERS = 64;
const ENQUEUED_WITHIN_MS = 15_000;

const COMPLETED = "SELECT count(*) AS many FROM sys_invocation WHERE status = 'completed'";
const STEPS = "SELECT count(*) AS many FROM sys_journal WHERE entry_type = 'Command: Run'";

/** What the tasks of a drain have in common. */
const drain = { seen: new Set(), twice: 0, first: undefined, expected: 0, finish: undefined };

const bench = restate.service({
  name: "bench",
  handlers: {
    pipeline: async (ctx, steps) => {
      for (let no = 0; no < steps; no++) await ctx.run("noop", () => no);
      return steps;
    },
    task: async (_ctx, task) => {
      drain.first ??= performance.now();
      if (drain.seen.has(task)) drain.twice += 1;
      drain.seen.add(task);
      if (drain.seen.size === drain.expected) drain.finish();
    },
  },
});

/** The handlers, where the server can call them. */
async function serve() {
  const quiet = () => {};
  const handler = restate.endpoint().setLogger(quiet).bind(bench).http2Handler();
  const endpoint = createServer(handler).listen(0, "127.0.0.1");
  await once(endpoint, "listening");
  return endpoint;
}

/** Calls a handler through the server's ingress. */
function call(agent, port, path, body) {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json" };
    const asked = ask({ agent, port, path, headers, host: "127.0.0.1", method: "POST" }, (told) => {
      let text = "";
      told.setEncoding("utf8").on("data", (some) => (text += some));
      const refused = () => new Error(`${path}: ${told.statusCode} ${text}`);
      told.on("end", () => (told.statusCode < 300 ? resolve(text) : reject(refused())));
      told.on("error", reject);
    });
    asked.on("error", reject).end(JSON.stringify(body));
  });
}

/** `callers` at once make the calls 0, 1, 2, … */
async function all(calls, callers, make) {
  let begun = 0;
  const caller = async () => {
    while (begun < calls) await make(begun++);
  };
  await Promise.all(Array.from({ length: callers }, caller));
}

function inTime(promise, told) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(told())), PATIENCE_MS)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function pipelines(server, agent, { tasks, steps, in_flight: inFlight }) {
  const path = "/bench/pipeline";
  // The first one makes the connections.
  await inTime(call(agent, server.ingress, path, steps), () => "the first call is not answered");
  const took = [];
  const start = performance.now();
  const worked = all(tasks, inFlight, async () => {
    const one = performance.now();
    await call(agent, server.ingress, path, steps);
    took.push(performance.now() - one);
  });
  await inTime(worked, () => `stalled: ${took.length} of ${tasks} done`);
  const elapsed_s = (performance.now() - start) / 1e3;
  took.sort((a, b) => a - b);
  const [completed, ran] = [await server.count(COMPLETED), await server.count(STEPS)];
  if (completed !== tasks + 1) throw new Error(`${completed - 1} of ${tasks} calls are completed`);
  return { elapsed_s, p50_ms: took[Math.floor(took.length / 2)], done: ran - steps, duplicates: 0, error: null };
}

async function claims(server, agent, { tasks }) {
  const finished = new Promise((finish) => {
    Object.assign(drain, { seen: new Set(), twice: 0, first: undefined, expected: tasks, finish });
  });
  const due = performance.now() + ENQUEUED_WITHIN_MS;
  await all(tasks, ENQUEUERS, (task) => {
    const delay = Math.max(0, Math.round(due - performance.now()));
    return call(agent, server.ingress, `/bench/task/send?delay=${delay}ms`, task);
  });
  if (drain.first) throw new Error(`${tasks} tasks were not enqueued before the first was due`);
  await inTime(finished, () => `stalled: ${drain.seen.size} of ${tasks} tasks done`);
  // Its word counts only once it is in the table.
  while ((await server.count(COMPLETED)) < tasks && performance.now() - due < PATIENCE_MS) {
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const elapsed_s = (performance.now() - drain.first) / 1e3;
  const done = await server.count(COMPLETED);
  return { elapsed_s, p50_ms: 0, done, duplicates: drain.twice, error: null };
}

async function answer(request) {
  const endpoint = await serve();
  const agent = new Agent({ keepAlive: true });
  let server;
  try {
    server = await Server.start(request.place);
    await server.ask("/deployments", { uri: `http://127.0.0.1:${endpoint.address().port}` });
    return await (request.workload === "claims" ? claims : pipelines)(server, agent, request);
  } finally {
    agent.destroy();
    await server?.stop();
    endpoint.close();
  }
}

// Its server ends with it.
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

for await (const line of createInterface({ input: process.stdin })) {
  const failed = (error) => ({ elapsed_s: 0, p50_ms: 0, done: 0, duplicates: 0, error: String(error) });
  console.log(JSON.stringify(await answer(JSON.parse(line)).catch(failed)));
}
process.exit(0);
