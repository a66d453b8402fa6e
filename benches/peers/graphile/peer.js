// graphile-worker as a peer: reads a request a line, works it off in the database it names, answers a line.
//
// A pipeline is a chain of jobs: each adds the one that follows it. Jobs that are done are deleted, so that what was
// done is what was numbered and is not there any more.

import { createInterface } from "node:readline";
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

const TASK = "step";
/** A request that takes longer has stalled. */
const PATIENCE_MS = 300_000;
/** Connections beside those of the workers: the one that listens, and the one that counts. */
const FURTHER_CONNECTIONS = 2;
/** How many jobs are fetched at once in the batched setting: as in the figures that its authors give. */
const LOCAL_QUEUE = 500;

const quiet = new Logger(() => () => {});

/** Whole chains, some of them begun; tells when every step of all of them was completed. */
class Chains {
  constructor(chains, steps) {
    Object.assign(this, { chains, steps, begun: 0, seen: new Set(), twice: 0 });
    this.allSeen = new Promise((resolve) => (this.finish = resolve));
    this.ended = new Map();
  }

  /** Begins a chain, if there is one that has not begun. */
  next() {
    return this.begun < this.chains ? { chain: this.begun++, no: 0 } : undefined;
  }

  see({ chain, no }) {
    const step = chain * this.steps + no;
    if (this.seen.has(step)) this.twice += 1;
    this.seen.add(step);
    if (no === this.steps - 1) this.ended.get(chain)?.();
    if (this.seen.size === this.chains * this.steps) this.finish();
  }
}

async function count(pool, sql) {
  return Number((await pool.query(sql)).rows[0].count);
}

const waiting = (pool) => count(pool, "SELECT count(*) FROM graphile_worker._private_jobs");
/** How many jobs were ever added. */
const added = (pool) =>
  count(pool, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS count FROM graphile_worker.jobs_id_seq1");

async function mustBeDurable(pool) {
  for (const setting of ["fsync", "synchronous_commit"]) {
    const value = (await pool.query("SELECT current_setting($1) AS value", [setting])).rows[0].value;
    if (value !== "on") throw new Error(`${setting} is ${value}`);
  }
}

/** One bulk insert of so many chains' first steps. */
async function enqueue(pool, chains, many) {
  const jobs = [];
  for (let at = 0; at < many; at++) {
    const payload = chains.next();
    if (payload) jobs.push({ identifier: TASK, payload });
  }
  await pool.query(
    `SELECT 1 FROM graphile_worker.add_jobs(ARRAY(
       SELECT json_populate_record(NULL::graphile_worker.job_spec, spec) FROM json_array_elements($1::json) AS spec))`,
    [JSON.stringify(jobs)],
  );
}

function inTime(promise, told) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(told())), PATIENCE_MS)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function answer({ workload, place, tasks, steps, in_flight: inFlight, batched }) {
  const pool = new pg.Pool({ connectionString: place, max: inFlight + FURTHER_CONNECTIONS });
  // A connection that breaks fails its query too, which is where it is told.
  pool.on("error", () => {}).on("connect", (client) => client.on("error", () => {}));
  const batching = batched
    ? { localQueue: { size: LOCAL_QUEUE }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
    : {};
  const options = {
    pgPool: pool,
    logger: quiet,
    noHandleSignals: true,
    preset: { worker: { concurrentJobs: inFlight, ...batching } },
  };
  try {
    await mustBeDurable(pool);
    await runMigrations(options);
    const chains = new Chains(tasks, workload === "claims" ? 1 : steps);
    const before = await added(pool);
    // Connections are made before the time is taken.
    const clients = await Promise.all(Array.from({ length: inFlight }, () => pool.connect()));
    clients.forEach((client) => client.release());
    const taskList = {
      [TASK]: async ({ chain, no }, helpers) => {
        const latency = workload === "latency";
        const following = no + 1 < chains.steps ? { chain, no: no + 1 } : latency ? undefined : chains.next();
        if (following) await helpers.addJob(TASK, following);
      },
    };
    if (workload === "claims") await enqueue(pool, chains, tasks);
    let start = performance.now();
    const runner = await run({ ...options, taskList });
    runner.events.on("job:complete", ({ job, error }) => error || chains.see(job.payload));
    const took = [];
    if (workload === "pipelines") {
      start = performance.now();
      await enqueue(pool, chains, inFlight);
    } else if (workload === "latency") {
      for (let chain = 0; chain < tasks; chain++) {
        const one = performance.now();
        const ended = new Promise((resolve) => chains.ended.set(chain, resolve));
        await enqueue(pool, chains, 1);
        await inTime(ended, () => `chain ${chain} did not end`);
        took.push(performance.now() - one);
      }
    }
    const expected = tasks * chains.steps;
    await inTime(chains.allSeen, () => `stalled: ${chains.seen.size} of ${expected} jobs done`);
    // Its word counts only once it is in the table.
    while ((await waiting(pool)) > 0 && performance.now() - start < PATIENCE_MS) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const elapsed_s = (performance.now() - start) / 1e3;
    await runner.stop();
    took.sort((a, b) => a - b);
    const done = (await added(pool)) - before - (await waiting(pool));
    return { elapsed_s, p50_ms: took[Math.floor(took.length / 2)] ?? 0, done, duplicates: chains.twice, error: null };
  } finally {
    await pool.end();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const failed = (error) => ({ elapsed_s: 0, p50_ms: 0, done: 0, duplicates: 0, error: String(error) });
  console.log(JSON.stringify(await answer(JSON.parse(line)).catch(failed)));
}
