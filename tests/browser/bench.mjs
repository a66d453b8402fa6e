// Measures the dashboard in Debian's Chromium against a server of its own, on loopback, and prints one row for each
// target of docs/dashboard.md.
//
//   node bench.mjs PROGRAM [--times N] [--only PART,PART] [--seconds N] [--events N]
//
// PROGRAM is the built `sprag`. The numbers are medians of N cold loads (10 unless told otherwise). `--seconds` and `--events`
// make the tail and the soak shorter; their rows say how long they were.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { chromium } from 'playwright-core';

const [program, ...options] = process.argv.slice(2);
const option = (name, usual) => (options.includes(name) ? options[options.indexOf(name) + 1] : usual);
const TIMES = Number(option('--times', 10));
const ONLY = option('--only', '');
const SECONDS = Number(option('--seconds', 60));
const EVENTS = Number(option('--events', 1_000_000));
const RUNS = 10_000;
const STEPS = 10_000;
const LINES = 1_000_000;
const FILES = 2_000;

const folder = mkdtempSync(join(tmpdir(), 'sprag-bench-ui-'));
const data = join(folder, 'data');
const repository = join(folder, 'repository');
const results = [];
const median = (all) => [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)];
const p95 = (all) => [...all].sort((a, b) => a - b)[Math.min(all.length - 1, Math.floor(all.length * 0.95))];
const ms = (value) => `${Math.round(value)} ms`;
const row = (what, target, value) => {
  results.push([what, target, value]);
  console.error(`${what}: ${value} (${target})`);
};

const port = await new Promise((resolve) => {
  const probe = createServer().listen(0, '127.0.0.1', () => {
    const { port } = probe.address();
    probe.close(() => resolve(port));
  });
});
const url = `http://127.0.0.1:${port}`;
let server;
async function serve() {
  server = spawn(program, ['serve', '--listen', `127.0.0.1:${port}`, '--slots', '2'], { cwd: repository, env: { ...process.env, SPRAG_DATA: data }, stdio: 'ignore' });
  for (let tries = 0; tries < 600; tries++) {
    try {
      if ((await fetch(`${url}/readyz`)).ok) return;
    } catch {
      // Not listening yet.
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error('the server does not answer');
}
let token = '';
async function call(method, path, body) {
  const answer = await fetch(url + path, { method, headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' }, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}
const start = async (yaml, more = {}) => (await call('POST', '/v1/runs', { yaml, ...more })).id;
async function until(what, holds) {
  for (let tries = 0; tries < 6_000; tries++) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`${what}: waited too long`);
}
const status = async (run) => (await call('GET', `/v1/runs/${run}`)).status;

let browser;
async function cold() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000);
  const signedIn = await page.request.post(`${url}/v1/session`, { data: { token }, headers: { origin: url } });
  if (!signedIn.ok()) throw new Error(`sign in: ${signedIn.status()}`);
  return page;
}
/** Returns the time from the start of a navigation until a condition of the page holds. */
async function shown(page, path, holds) {
  const from = performance.now();
  await page.goto(url + path, { waitUntil: 'commit' });
  await page.waitForFunction(holds, undefined, { polling: 'raf' });
  return performance.now() - from;
}
const watchTasks = (page) => page.evaluate(() => {
  globalThis.longest = 0;
  globalThis.watcher?.disconnect();
  globalThis.watcher = new PerformanceObserver((list) => list.getEntries().forEach((entry) => (globalThis.longest = Math.max(globalThis.longest, entry.duration))));
  globalThis.watcher.observe({ type: 'longtask' });
});
const longest = (page) => page.evaluate(() => globalThis.longest);
const heap = async (page) => {
  const session = await page.context().newCDPSession(page);
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  return usedSize / 1e6;
};

const parts = {
  async size() {
    const assets = join(dirname(fileURLToPath(import.meta.url)), '../../crates/dashboard/dist/assets');
    const packed = (name) => gzipSync(readFileSync(join(assets, name)), { level: 9 }).length / 1024;
    const all = readdirSync(assets);
    const scripts = all.filter((name) => name.endsWith('.js'));
    // The first route: the entry, the page Now, and what they import.
    const first = new Set(scripts.filter((name) => /^(index|Now)-/.test(name)));
    for (let before = 0; before !== first.size; ) {
      before = first.size;
      for (const name of [...first]) {
        const text = readFileSync(join(assets, name), 'utf8');
        for (const match of text.matchAll(/(?:from|import)\s*"\.\/([^"]+\.js)"/g)) first.add(match[1]);
      }
    }
    const sum = (names) => [...names].reduce((total, name) => total + packed(name), 0);
    row('first route JS / all JS / CSS', '≤ 80 / ≤ 250 / ≤ 25 KB gz', `${Math.round(sum(first))} / ${Math.round(sum(scripts))} / ${Math.round(sum(all.filter((name) => name.endsWith('.css'))))} KB gz`);
  },
  async now() {
    const [paints, usable] = [[], []];
    // Without any run, the page shows how to start one instead.
    await start('name: first\nsteps:\n  - id: ask\n    gate: { ask: Continue? }\n');
    for (let nth = 0; nth < TIMES; nth++) {
      const page = await cold();
      usable.push(await shown(page, '/', () => [...document.querySelectorAll('h2')].some((one) => one.textContent === 'Executing')));
      paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0));
      await page.context().close();
    }
    row('Now: first contentful paint / usable', '≤ 300 / ≤ 600 ms', `${Math.round(median(paints))} / ${ms(median(usable))}`);
  },
  async runs() {
    // Runs of a queue that no worker serves stay as they are.
    const yaml = 'name: idle\nsteps:\n  - id: wait\n    queue: nowhere\n    run: "true"\n';
    const left = Array.from({ length: RUNS }, (_, nth) => nth);
    await Promise.all(Array.from({ length: 8 }, async () => {
      for (let nth = left.pop(); nth !== undefined; nth = left.pop()) await start(yaml, { name: `Number ${nth}` });
    }));
    const page = await cold();
    await shown(page, '/runs', () => document.querySelectorAll('.run-row').length > 5);
    await watchTasks(page);
    await page.evaluate(async () => {
      const rows = document.querySelector('.rows');
      for (let nth = 0; nth < 120; nth++) {
        rows.scrollTop += 400;
        await new Promise((resolve) => requestAnimationFrame(resolve));
      }
    });
    const [tasks, nodes] = [await longest(page), await page.evaluate(() => document.querySelectorAll('*').length)];
    const filters = [];
    for (let nth = 0; nth < TIMES; nth++) {
      const field = page.locator('[data-search]');
      await field.fill('');
      await page.waitForTimeout(400);
      filters.push(await page.evaluate(async (wanted) => {
        const field = document.querySelector('[data-search]');
        const from = performance.now();
        field.value = wanted;
        field.dispatchEvent(new Event('input', { bubbles: true }));
        while (performance.now() - from < 20_000) {
          await new Promise((resolve) => requestAnimationFrame(resolve));
          const rows = [...document.querySelectorAll('.run-row')];
          if (rows.length && rows.every((one) => one.textContent.includes(wanted))) break;
        }
        return performance.now() - from;
      }, `Number ${1000 + nth}`));
    }
    await page.context().close();
    row(`${RUNS.toLocaleString('en')} runs: DOM nodes / longest task / filter → paint`, '≤ 1,200 / ≤ 50 ms / ≤ 150 ms', `${nodes} / ${ms(tasks)} / ${ms(median(filters))}`);
  },
  async steps() {
    const width = 100;
    let yaml = 'name: big\nsteps:\n';
    for (let nth = 0; nth < STEPS; nth++) {
      const layer = Math.floor(nth / width);
      const needs = layer ? [...new Set([(layer - 1) * width + (nth % width), (layer - 1) * width + ((nth * 7 + layer) % width)])] : [];
      yaml += `  - id: step-${nth}\n    queue: nowhere\n    run: 'true'\n    needs: [${needs.map((need) => `step-${need}`).join(', ')}]\n`;
    }
    const run = await start(yaml, { name: 'Ten thousand steps' });
    const from = performance.now();
    await call('GET', `/v1/runs/${run}/graph?layout=true`);
    const layout = performance.now() - from;
    const page = await cold();
    const draws = [await shown(page, `/runs/${run}`, () => document.querySelector('.legend')?.textContent.includes('10000'))];
    for (let nth = 1; nth < TIMES; nth++) {
      const other = await cold();
      draws.push(await shown(other, `/runs/${run}`, () => document.querySelector('.legend')?.textContent.includes('10000')));
      await other.context().close();
    }
    const drawn = median(draws);
    const frames = await page.evaluate(async () => {
      const canvas = document.querySelector('.graph canvas');
      const times = [];
      let last = performance.now();
      for (let nth = 0; nth < 120; nth++) {
        canvas.dispatchEvent(new WheelEvent('wheel', { deltaX: 30, deltaY: 10, bubbles: true, cancelable: true }));
        await new Promise((resolve) => requestAnimationFrame(resolve));
        const now = performance.now();
        times.push(now - last);
        last = now;
      }
      return times;
    });
    const used = await heap(page);
    await page.context().close();
    row(`${STEPS.toLocaleString('en')} steps: layout / first draw / pan p95 / heap`, '≤ 300 / ≤ 500 / ≤ 25 ms / ≤ 80 MB', `${Math.round(layout)} / ${Math.round(drawn)} / ${ms(p95(frames))} / ${Math.round(used)} MB`);
  },
  async log() {
    const run = await start(`name: loud\nsteps:\n  - id: say\n    run: seq -f 'line %.0f of the log, some of it the same' 1 ${LINES}\n`);
    await until('the log is written', async () => (await status(run)) === 'completed');
    const [first, jumps, rows] = [[], [], []];
    for (let nth = 0; nth < TIMES; nth++) {
      const page = await cold();
      first.push(await shown(page, `/runs/${run}/steps/say#L1`, () => document.querySelectorAll('.log .line').length > 5));
      const wanted = 1_000 + Math.floor(((LINES - 2_000) / TIMES) * nth);
      // A link to a line, in a tab that has the page already.
      await page.goto('about:blank');
      const from = performance.now();
      await page.goto(`${url}/runs/${run}/steps/say#L${wanted}`, { waitUntil: 'commit' });
      await page.waitForFunction((wanted) => [...document.querySelectorAll('.log .line')].some((one) => one.textContent.includes(`line ${wanted} of`)), wanted, { polling: 'raf' });
      jumps.push(performance.now() - from);
      rows.push(await page.evaluate(() => document.querySelectorAll('.log .line').length));
      await page.context().close();
    }
    // All hits of a search over the whole log.
    const from = performance.now();
    for (let after = 0, more = true; more; ) {
      const found = await call('GET', `/v1/runs/${run}/steps/say/log/search?q=99+of+the&after=${after}`);
      after = found.lines.at(-1) ?? 0;
      more = found.more;
    }
    const search = performance.now() - from;
    row('1,000,000-line log: first lines / any line / all hits / rows', '≤ 300 / ≤ 200 ms / ≤ 3 s / ≤ 300', `${Math.round(median(first))} / ${ms(median(jumps))} / ${(search / 1000).toFixed(1)} s / ${Math.max(...rows)}`);
  },
  async tail() {
    const seconds = SECONDS;
    const yaml = `name: tail\nsteps:\n  - id: say\n    run: |\n      for s in $(seq 1 ${seconds * 10}); do seq -f "burst $s line %.0f" 1 1000; sleep 0.1; done\n`;
    const run = await start(yaml);
    const page = await cold();
    await shown(page, `/runs/${run}/steps/say`, () => document.querySelectorAll('.log .line').length > 5);
    const before = await heap(page);
    await watchTasks(page);
    await until('the tail ends', async () => (await status(run)) === 'completed');
    const after = await heap(page);
    row(`tail of 10,000 lines/s for ${seconds} s: longest task / heap`, '≤ 100 ms / flat', `${ms(await longest(page))} / ${before.toFixed(0)} → ${after.toFixed(0)} MB`);
    await page.context().close();
  },
  async diff() {
    const yaml = `name: large\nenvironment: { worktree: {} }\nsteps:\n  - id: change\n    run: |\n      mkdir -p many; for f in $(seq 1 ${FILES}); do seq -f "file $f line %.0f" 1 100 > many/$f.txt; done\n  - id: ask\n    gate: { ask: fine? }\n`;
    const run = await start(yaml, { dir: repository });
    await until('the files are written', async () => (await call('GET', `/v1/runs/${run}`)).waiting_for === 'person');
    const [lists, files] = [[], []];
    for (let nth = 0; nth < Math.min(TIMES, 5); nth++) {
      const page = await cold();
      lists.push(await shown(page, `/runs/${run}?tab=changes`, () => document.querySelectorAll('.file-head').length > 5));
      files.push(await page.evaluate(async (nth) => {
        const from = performance.now();
        document.querySelectorAll('.file-head')[nth].click();
        while (performance.now() - from < 20_000 && document.querySelectorAll('.dl').length < 20) await new Promise((resolve) => requestAnimationFrame(resolve));
        return performance.now() - from;
      }, nth));
      await page.context().close();
    }
    row(`diff of ${FILES.toLocaleString('en')} files, 200,000 lines: list / one file`, '≤ 500 / ≤ 150 ms', `${Math.round(median(lists))} / ${ms(median(files))}`);
  },
  async pixel() {
    for (let nth = 0; nth < 100; nth++) await start('name: live\nsteps:\n  - id: ask\n    gate: { ask: Continue? }\n', { name: `Live ${nth}` });
    const page = await cold();
    await shown(page, '/runs', () => document.querySelectorAll('.run-row').length > 5);
    await page.locator('.link-state.live').waitFor();
    const times = [];
    for (let nth = 0; nth < 20; nth++) {
      const name = `Fresh ${nth} ${Math.random()}`;
      const seen = page.waitForFunction((name) => document.querySelector('.rows')?.textContent.includes(name), name, { polling: 'raf' });
      await start('name: fresh\nsteps:\n  - id: ask\n    gate: { ask: Continue? }\n', { name });
      const from = performance.now();
      await seen;
      times.push(performance.now() - from);
    }
    await page.context().close();
    row('commit → pixel with 100 live runs, p95', '≤ 250 ms', ms(p95(times)));
  },
  async tabs() {
    const first = await cold();
    const context = first.context();
    const streams = new Set();
    context.on('request', (request) => {
      if (request.url().includes('/v1/events')) streams.add(request);
    });
    context.on('requestfailed', (request) => streams.delete(request));
    context.on('requestfinished', (request) => streams.delete(request));
    await first.goto(`${url}/runs`);
    await first.locator('.link-state.live').waitFor();
    for (let nth = 1; nth < 10; nth++) {
      const page = await context.newPage();
      await page.goto(`${url}/journal`);
      await page.locator('.link-state.live').waitFor();
    }
    const eleventh = await context.newPage();
    const loaded = await shown(eleventh, '/', () => [...document.querySelectorAll('h1')].some((one) => one.textContent === 'Now'));
    row('10 tabs: streams / 11th loads', '≤ 2 / ≤ 1 s', `${streams.size} / ${(loaded / 1000).toFixed(2)} s`);
    await context.close();
  },
  async killed() {
    const page = await cold();
    await page.goto(`${url}/runs`);
    await page.locator('.link-state.live').waitFor();
    const times = [];
    for (let nth = 0; nth < 3; nth++) {
      server.kill('SIGKILL');
      await new Promise((resolve) => server.once('exit', resolve));
      await page.locator('.link-state.stale').waitFor();
      await serve();
      const from = performance.now();
      const name = `After ${nth} ${Math.random()}`;
      await start('name: after\nsteps:\n  - id: ask\n    gate: { ask: Continue? }\n', { name });
      await page.waitForFunction((name) => document.querySelector('.rows')?.textContent.includes(name), name, { polling: 'raf' });
      times.push(performance.now() - from);
    }
    await page.context().close();
    row('server killed -9 and restarted: page equals API', '≤ 2 s', `${(Math.max(...times) / 1000).toFixed(1)} s`);
  },
  async soak() {
    const events = EVENTS;
    const page = await cold();
    await page.goto(`${url}/journal`);
    await page.locator('.link-state.live').waitFor();
    const before = await heap(page);
    const first = Number((await page.request.get(`${url}/v1/me`)).headers()['sprag-seq']);
    for (let seen = 0; seen < events; ) {
      await Promise.all(Array.from({ length: 8 }, () => start('name: soak\nsteps:\n  - id: wait\n    queue: nowhere\n    run: "true"\n')));
      seen = Number((await page.request.get(`${url}/v1/me`)).headers()['sprag-seq']) - first;
    }
    await page.waitForTimeout(2_000);
    const after = await heap(page);
    row(`soak of ${events.toLocaleString('en')} events: heap`, '+ ≤ 20 MB', `${before.toFixed(0)} → ${after.toFixed(0)} MB`);
    await page.context().close();
  },
};

mkdirSync(repository, { recursive: true });
const git = (...args) => execFileSync('git', ['-c', 'user.name=b', '-c', 'user.email=b@example.org', ...args], { cwd: repository });
git('init', '--quiet', '--initial-branch', 'main');
writeFileSync(join(repository, 'README'), 'A repository to measure with.\n');
git('add', '.');
git('commit', '--quiet', '--message', 'first');
let failure;
try {
  await serve();
  token = readFileSync(join(data, 'token'), 'utf8').trim();
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    headless: true,
    args: ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
  for (const [name, measure] of Object.entries(parts)) if (!ONLY || ONLY.split(',').includes(name)) await measure();
} catch (error) {
  failure = error;
}
await browser?.close();
server?.kill('SIGKILL');
rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
console.log('| what | target | measured |\n|---|---|---|');
for (const [what, target, value] of results) console.log(`| ${what} | ${target} | ${value} |`);
if (failure) {
  console.error(failure);
  process.exit(1);
}
