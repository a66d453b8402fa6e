// Uses the dashboard as a person does, in Debian's Chromium: signs in, looks at every page, answers a question, survives
// a killed server. Any console error, script error or violation of the page's policy fails it.
//
//   node smoke.mjs URL TOKEN FACTS [--grid] [--shots DIR]
//
// FACTS is JSON: the runs that the caller has started. The caller restarts the server when a line `restart` is printed,
// and writes a line when it listens again.
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const [url, token, factsText, ...options] = process.argv.slice(2);
const facts = JSON.parse(factsText);
const grid = options.includes('--grid');
const shots = options.includes('--shots') ? options[options.indexOf('--shots') + 1] : undefined;
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const problems = [];
let expected = [];
const input = createInterface({ input: process.stdin });
const lines = input[Symbol.asyncIterator]();

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

function check(condition, message) {
  if (!condition) problems.push(message);
}

async function newPage(theme, width) {
  const context = await browser.newContext({ colorScheme: theme, viewport: { width, height: width < 600 ? 740 : 800 }, bypassCSP: false, reducedMotion: 'reduce' });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.setDefaultNavigationTimeout(60_000);
  page.on('console', (message) => {
    if (message.type() !== 'error' && message.type() !== 'warning') return;
    const text = `${message.text()} ${message.location().url ?? ''}`;
    if (!expected.some((word) => text.includes(word))) problems.push(`console: ${text}`);
  });
  page.on('pageerror', (error) => problems.push(`script error: ${error}`));
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
  });
  return page;
}

async function signIn(page) {
  expected = ['401'];
  await page.goto(url);
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Now' }).waitFor();
  expected = [];
}

async function accessible(page, name) {
  // The policy lets no inline script in; the debugger's own evaluation is not bound by it.
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }));
  for (const one of found.violations) {
    const where = one.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ''}`);
    problems.push(`${name}: ${one.id}: ${one.help}: ${where.join(' | ')}`);
  }
}

async function look(page, name, path, ready, theme, width) {
  await page.goto(url + path);
  await ready(page);
  await accessible(page, `${name} ${theme} ${width}`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check(!wide, `${name} ${theme} ${width}: the page is wider than the window`);
  if (shots) await page.screenshot({ path: `${shots}/${name}-${theme}-${width}.png` });
}

const heading = (name) => (page) => page.getByRole('heading', { name, exact: true }).waitFor();
const run = (id, tab) => `/runs/${id}?tab=${tab}`;
const pages = () => [
  ['now', '/', async (page) => { await page.getByRole('heading', { name: 'Needs you' }).waitFor(); await page.getByText('Executing', { exact: true }).waitFor(); }],
  ['runs', '/runs', (page) => page.getByRole('listitem').first().waitFor()],
  ['run-graph', run(facts.fan, 'graph'), (page) => page.locator('.legend').waitFor()],
  ['run-step', `${run(facts.failed, 'graph')}&step=bad`, (page) => page.getByRole('complementary').getByText('Attempts').waitFor()],
  ['run-list', run(facts.fan, 'list'), (page) => page.getByRole('listitem').first().waitFor()],
  ['run-timeline', run(facts.fan, 'timeline'), (page) => page.getByRole('listitem').first().waitFor()],
  ['run-changes', run(facts.asks, 'changes'), (page) => page.locator('.diff').first().waitFor()],
  ['run-events', run(facts.fan, 'events'), (page) => page.getByRole('listitem').first().waitFor()],
  ['run-files', run(facts.fan, 'files'), (page) => page.locator('.body .empty, .body .card').first().waitFor()],
  ['log', `/runs/${facts.hostile}/steps/say?q=needle`, (page) => page.locator('.line.hit').first().waitFor()],
  ['questions', '/questions', (page) => page.locator('.gate').first().waitFor()],
  ['boards', '/boards', heading('Boards')],
  ['workers', '/workers', (page) => page.locator('table').first().waitFor()],
  ['pipelines', '/pipelines', heading('Pipelines')],
  ['journal', '/journal', (page) => page.getByRole('listitem').first().waitFor()],
  ['settings', '/settings', heading('Settings')],
];

try {
  const combinations = grid ? [['light', 1280], ['dark', 1280], ['light', 360], ['dark', 360]] : [['light', 1280], ['dark', 360]];
  for (const [theme, width] of combinations) {
    const page = await newPage(theme, width);
    await signIn(page);
    // In the short form, every page is seen once: half of them in each combination.
    const all = pages();
    const seen = grid ? all : all.filter((_, index) => index % 2 === combinations.findIndex(([one]) => one === theme));
    for (const [name, path, ready] of seen) await look(page, name, path, ready, theme, width);
    if (grid) {
      expected = ['404'];
      await look(page, 'missing', '/runs/000000000000', (page) => page.getByText('does not exist').waitFor(), theme, width);
      expected = [];
    }
    await page.context().close();
  }

  const page = await newPage('light', 1280);
  // A wrong token is refused with a sentence.
  expected = ['401'];
  await page.goto(url);
  await page.getByLabel('Token').fill('wrong');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('the token is unknown').waitFor();
  await signIn(page);
  const stored = await page.evaluate((secret) => JSON.stringify(localStorage).includes(secret) || document.cookie.includes('sprag') || location.href.includes(secret), token);
  check(!stored, 'a script of the page can read the token or the session');

  // Hostile output is text.
  await page.goto(`${url}/runs/${facts.hostile}/steps/say#L1`);
  await page.getByText('<img src=x onerror=alert(1)>').waitFor();
  check((await page.locator('.log img, .log script').count()) === 0, 'the log has made elements');
  await page.locator('.log .fg-red', { hasText: 'red' }).first().waitFor();

  // A comment on a line outlives a reload, and goes back with the answer; all of it by keyboard.
  await page.goto(`${url}${run(facts.asks, 'changes')}`);
  await page.getByRole('button', { name: 'Comment on line 1' }).first().focus();
  await page.keyboard.press('Enter');
  await page.keyboard.type('Please say why');
  await page.keyboard.press('Control+Enter');
  await page.getByText('Please say why').waitFor();
  await page.reload();
  await page.getByText('Please say why').waitFor();
  await page.locator('body').press('s');
  const dialog = page.getByRole('dialog');
  check((await dialog.getByRole('textbox').inputValue()).includes('Please say why'), 'the comment is in the answer');
  if (shots) await page.screenshot({ path: `${shots}/send-back.png` });
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden' });

  // The question is answered, and the run that another page shows ends without a reload.
  const other = await page.context().newPage();
  await other.goto(`${url}${run(facts.asks, 'list')}`);
  await other.locator('.head').getByText('needs you').waitFor();
  await page.goto(`${url}/questions`);
  await page.locator('.gate').filter({ hasText: facts.asks }).getByRole('button', { name: 'yes', exact: true }).click();
  await other.locator('.head').getByText('completed').waitFor();
  await page.getByText('answered: yes').waitFor();

  // The server is killed and started again: the page says so, and then has everything.
  expected = ['ERR_CONNECTION_REFUSED', 'ERR_INCOMPLETE_CHUNKED_ENCODING', 'ERR_CONNECTION_RESET', 'ERR_EMPTY_RESPONSE', 'Failed to load'];
  await page.goto(`${url}/runs`);
  await page.locator('.link-state.live').waitFor();
  console.log('restart');
  const { value: started } = await lines.next();
  const { made } = JSON.parse(started);
  await page.getByText(made).first().waitFor();
  await page.locator('.link-state.live').waitFor();
  expected = [];
} catch (error) {
  problems.push(`${error}`);
  if (shots) for (const context of browser.contexts()) for (const page of context.pages()) await page.screenshot({ path: `${shots}/failed.png` }).catch(() => {});
}
await browser.close();
input.close();
for (const problem of problems) console.log(`PROBLEM ${problem}`);
console.log(problems.length ? 'failed' : 'passed');
process.exit(problems.length ? 1 : 0);
