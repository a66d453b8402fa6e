// Uses the dashboard as people do, in Debian's Chromium: signs in, looks at every page, reviews and approves a change by
// keyboard, meets bad input, survives a killed server. Any console error, script error or violation of the page's policy
// fails it.
//
//   node smoke.mjs URL TOKEN FACTS [--grid] [--shots DIR]
//
// FACTS is JSON: the runs that the caller has started. The caller does what lines of the output ask for (`do restart`,
// `do gc`, …), and answers each with a line of JSON.
import { createInterface } from 'node:readline';
import { accessible, check, expected, launch, newPage, problems, signIn } from './lib.mjs';

const [url, token, factsText, ...options] = process.argv.slice(2);
const facts = JSON.parse(factsText);
const grid = options.includes('--grid');
const shots = options.includes('--shots') ? options[options.indexOf('--shots') + 1] : undefined;
const input = createInterface({ input: process.stdin });
const lines = input[Symbol.asyncIterator]();
async function caller(what) {
  console.log(`do ${what}`);
  const { value } = await lines.next();
  return JSON.parse(value);
}

const browsers = [await launch()];
const browser = browsers[0];
const run = (id, tab) => `/runs/${id}?tab=${tab}`;
const heading = (name) => (page) => page.getByRole('heading', { name, exact: true }).waitFor();
const item = (page) => page.getByRole('listitem').first().waitFor();
const pages = () => [
  ['now', '/', async (page) => { await page.getByRole('heading', { name: 'Needs you' }).waitFor(); await page.getByText('Executing', { exact: true }).waitFor(); }],
  ['runs', '/runs', item],
  ['run-graph', run(facts.fan, 'graph'), (page) => page.locator('.legend').waitFor()],
  ['run-step', `${run(facts.failed, 'graph')}&step=bad`, (page) => page.getByRole('complementary').getByText('Attempts').waitFor()],
  ['run-list', run(facts.fan, 'list'), item],
  ['run-timeline', run(facts.fan, 'timeline'), item],
  ['run-changes', run(facts.asks, 'changes'), (page) => page.locator('.diff .dl').first().waitFor()],
  ['run-events', run(facts.fan, 'events'), item],
  ['run-files', run(facts.fan, 'files'), (page) => page.locator('.body .empty, .body .card').first().waitFor()],
  ['log', `/runs/${facts.hostile}/steps/say?q=needle`, (page) => page.locator('.line.hit').first().waitFor()],
  ['questions', '/questions', (page) => page.locator('.gate').first().waitFor()],
  ['agents', '/agents', (page) => page.getByText('No accounts yet').waitFor()],
  ['boards', '/boards', (page) => page.locator('.card .item').first().waitFor()],
  ['board', `/boards/${facts.board}`, (page) => page.locator('.task').first().waitFor()],
  ['landing', '/landing', (page) => page.locator('.item').first().waitFor()],
  ['workers', '/workers', (page) => page.locator('table').first().waitFor()],
  ['rules', '/rules', (page) => page.getByText('No rules').waitFor()],
  ['pipelines', '/pipelines', (page) => page.locator('.item').first().waitFor()],
  ['pipeline', '/pipelines/ship', (page) => page.getByLabel('count').waitFor()],
  ['environments', '/environments', (page) => page.locator('.item').first().waitFor()],
  ['lifecycles', '/lifecycles?table=execution', (page) => page.locator('.diagram .arrow').first().waitFor({ state: 'attached' })],
  ['journal', '/journal', item],
  ['settings', '/settings', heading('Settings')],
];

async function look(page, name, path, ready, theme, width) {
  await page.goto(url + path);
  await ready(page);
  await accessible(page, `${name} ${theme} ${width}`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check(!wide, `${name} ${theme} ${width}: the page is wider than the window`);
  if (shots) await page.screenshot({ path: `${shots}/${name}-${theme}-${width}.png` });
}

/** Looks at every page: in each combination of theme and width, or in the short form once, half of them in each of two. */
async function everyPage() {
  const combinations = grid ? [['light', 1280], ['dark', 1280], ['light', 360], ['dark', 360]] : [['light', 1280], ['dark', 360]];
  for (const [nth, [theme, width]] of combinations.entries()) {
    const page = await newPage(browser, { theme, width });
    await signIn(page, url, token);
    const seen = grid ? pages() : pages().filter((_, index) => index % 2 === nth);
    for (const [name, path, ready] of seen) await look(page, name, path, ready, theme, width);
    if (grid) {
      expected.words = ['404'];
      await look(page, 'missing', '/runs/000000000000', (page) => page.getByText('does not exist').waitFor(), theme, width);
      expected.words = [];
    }
    await page.context().close();
  }
}

async function signingIn(page) {
  // A wrong token is refused with a sentence.
  expected.words = ['401'];
  await page.goto(url);
  await page.getByLabel('Token').fill('wrong');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('the token is unknown').waitFor();
  await signIn(page, url, token);
  const stored = await page.evaluate((secret) => JSON.stringify(localStorage).includes(secret) || document.cookie.includes('sprag') || location.href.includes(secret), token);
  check(!stored, 'a script of the page can read the token or the session');
}

async function hostileOutput(page) {
  await page.goto(`${url}/runs/${facts.hostile}/steps/say#L1`);
  await page.getByText('<img src=x onerror=alert(1)>').waitFor();
  check((await page.locator('.log img, .log script').count()) === 0, 'the log has made elements');
  await page.locator('.log .fg-red', { hasText: 'red' }).first().waitFor();
}

/** From the first look at a change to its landing, in three browsers, and by keyboard alone. */
async function review(page) {
  // Three separate programs in the long form; three separate sets of cookies in the short one.
  if (grid) browsers.push(await launch(), await launch());
  const [second, third] = [await newPage(browsers[1] ?? browser), await newPage(browsers[2] ?? browser, { width: 360 })];
  for (const other of [second, third]) await signIn(other, url, token);
  await second.goto(`${url}${run(facts.asks, 'changes')}`);
  await third.goto(`${url}/questions`);
  const asked = third.locator('.gate').filter({ hasText: facts.asks });
  await asked.waitFor();

  await page.goto(`${url}${run(facts.asks, 'changes')}`);
  await page.getByText('A binary file; it is not shown.').waitFor();
  await page.locator('section[aria-label="notes.txt"]').getByRole('button', { name: 'Comment on line 1', exact: true }).focus();
  // `v` marks the first line of a comment, `j` goes on, `c` comments up to there.
  await page.keyboard.press('v');
  await page.keyboard.press('j');
  await page.keyboard.press('c');
  await page.keyboard.type('Please say why');
  await page.keyboard.press('Control+Enter');
  await page.locator('.comment', { hasText: 'Please say why' }).filter({ hasText: 'lines 1–2' }).waitFor();
  // Other browsers see it without a reload, and this one after a reload.
  await second.locator('.comment', { hasText: 'Please say why' }).waitFor();
  await page.reload();
  await page.locator('.comment', { hasText: 'Please say why' }).waitFor();
  if (shots) await page.screenshot({ path: `${shots}/comment.png` });

  // Sending it back makes the comment the feedback of the step that runs again. The new changes have no comments.
  await page.locator('body').press('s');
  const dialog = page.getByRole('dialog');
  check((await dialog.getByRole('textbox').inputValue()).includes('notes.txt:1-2\nPlease say why'), 'the comment is in the answer');
  if (shots) await page.screenshot({ path: `${shots}/send-back.png` });
  // While the step runs again, there is nothing to compare for a moment.
  expected.words = ['409'];
  await dialog.getByRole('textbox').press('Tab');
  await dialog.getByRole('button', { name: 'Send back' }).press('Enter');
  await page.locator('.diff .dl.add', { hasText: 'Please say why' }).waitFor();
  await page.locator('.head').getByText('needs you').waitFor();
  check((await page.locator('.comment').count()) === 0, 'a comment stands beside lines of another revision');
  // The question that was on the third screen says that it was answered; the new one is below it.
  await asked.getByText('answered elsewhere').waitFor();

  // Approval, and the landing that follows it.
  await page.locator('body').press('a');
  await dialog.getByText('then lands the changes').waitFor();
  await dialog.getByRole('button', { name: 'Approve' }).press('Enter');
  await page.locator('.head').getByText('completed').waitFor();
  await second.locator('.head').getByText('completed').waitFor();
  await second.goto(`${url}/landing`);
  await second.locator('.item', { hasText: facts.asks }).getByText('landed').waitFor();
  expected.words = [];
  await second.context().close();
  await third.context().close();
}

/** Starts a run with the form of a pipeline, which refuses what the pipeline does not allow. */
async function inputForm(page) {
  await page.goto(`${url}/pipelines/ship`);
  const start = page.getByRole('button', { name: 'Run', exact: true });
  await page.getByLabel('count').fill('many');
  await start.click();
  await page.getByText('count must be a whole number.').waitFor();
  await page.getByLabel('count').fill('2');
  // A name of 10 kB is refused by the server, with a sentence.
  expected.words = ['422', '400'];
  await page.getByLabel('Name of the run').evaluate((field) => field.removeAttribute('maxlength'));
  await page.getByLabel('Name of the run').fill('x'.repeat(10_240));
  await start.click();
  await page.getByRole('alert').waitFor();
  expected.words = [];
  await page.getByLabel('Name of the run').fill('From the form');
  await start.click();
  await page.getByRole('heading', { name: 'From the form' }).waitFor();
}

async function badInput(page) {
  // A page that does not exist.
  await page.goto(`${url}/runs`);
  await page.evaluate(() => {
    history.pushState(null, '', '/nowhere');
    dispatchEvent(new PopStateEvent('popstate'));
  });
  await page.getByText('There is no page /nowhere.').waitFor();

  // A question and a step's name of 10 kB stay within the page.
  await page.goto(`${url}/questions`);
  await page.locator('.gate', { hasText: facts.long }).waitFor();
  check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'a long question makes the page wider than the window');

  // A clock that is three days ahead: durations are those of the server.
  const late = await newPage(browser, { clock: new Date(Date.now() + 3 * 86_400_000) });
  await signIn(late, url, token);
  await late.locator('.item', { hasText: 'nap' }).first().waitFor();
  await late.clock.runFor(1_500);
  const told = await late.locator('.item', { hasText: 'nap' }).first().textContent();
  check(!/\dd \d\dh/.test(told ?? ''), `a wrong clock shows ${told}`);
  await late.context().close();

  // A log that was deleted.
  await caller(`unlog ${facts.failed} ok`);
  expected.words = ['404', '410', '409'];
  await page.goto(`${url}/runs/${facts.failed}/steps/ok`);
  await page.locator('.empty').first().waitFor();
  if (shots) await page.screenshot({ path: `${shots}/no-log.png` });

  // A run that is forgotten while it is on the screen.
  await page.goto(`${url}${run(facts.gone, 'list')}`);
  await page.getByRole('listitem').first().waitFor();
  await caller(`gc ${facts.gone}`);
  await page.getByRole('button', { name: 'say' }).first().click();
  await page.getByRole('complementary').getByText('there is no run').waitFor();
  await page.reload();
  await page.getByText('This run does not exist').waitFor();
  expected.words = [];

  // A token that is removed while its page is open.
  const { token: short } = await caller('token');
  const guest = await newPage(browser);
  await signIn(guest, url, short);
  expected.words = ['401', 'Failed to load'];
  await caller('untoken');
  await guest.getByText('Your session has ended').waitFor();
  await guest.context().close();
  expected.words = [];
}

/** The server is killed and started again: the page says so, and then has everything. A newer server asks for a reload. */
async function killed(page) {
  expected.words = ['ERR_CONNECTION_REFUSED', 'ERR_INCOMPLETE_CHUNKED_ENCODING', 'ERR_CONNECTION_RESET', 'ERR_EMPTY_RESPONSE', 'Failed to load'];
  await page.goto(`${url}/runs`);
  await page.locator('.link-state.live').waitFor();
  await page.route('**/v1/me', async (route) => {
    try {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: { ...(await answer.json()), page: 'another build' } });
    } catch {
      await route.abort().catch(() => {});
    }
  });
  const { made } = await caller('restart');
  await page.getByText(made).first().waitFor();
  await page.locator('.link-state.live').waitFor();
  await page.getByRole('button', { name: 'Reload' }).waitFor();
  await page.unroute('**/v1/me');
  expected.words = [];
}

try {
  await everyPage();
  const page = await newPage(browser);
  for (const part of [signingIn, hostileOutput, inputForm, review, badInput, killed]) {
    await part(page).catch((error) => {
      throw new Error(`${part.name}: ${error}`);
    });
  }
} catch (error) {
  problems.push(`${error}`);
  if (shots) for (const context of browser.contexts()) for (const [nth, page] of context.pages().entries()) await page.screenshot({ path: `${shots}/failed-${nth}.png` }).catch(() => {});
}
for (const one of browsers) await one.close();
input.close();
for (const problem of problems) console.log(`PROBLEM ${problem}`);
console.log(problems.length ? 'failed' : 'passed');
process.exit(problems.length ? 1 : 0);
