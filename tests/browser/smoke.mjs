// Uses the dashboard as people do, in Debian's Chromium: signs in, looks at every page, reviews and approves a change by
// keyboard, meets bad input, survives a killed server. Any console error, script error or violation of the page's policy
// fails it.
//
//   node smoke.mjs URL TOKEN FACTS [--grid] [--shots DIR] [--only PART,PART]
//
// FACTS is JSON: the runs that the caller has started. The caller does what lines of the output ask for (`do restart`,
// `do gc`, …), and answers each with a line of JSON.
import { createInterface } from 'node:readline';
import { accessible, check, expected, launch, newPage, problems, signIn } from './lib.mjs';

const [url, token, factsText, ...options] = process.argv.slice(2);
const facts = JSON.parse(factsText);
const grid = options.includes('--grid');
const only = options.includes('--only') ? options[options.indexOf('--only') + 1].split(',') : undefined;
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
  ['agents', '/agents', (page) => page.getByRole('link', { name: 'robot · work' }).waitFor()],
  ['thread', `/agents/${facts.talks}/work`, (page) => page.getByText('I made the file.').waitFor()],
  ['boards', '/boards', (page) => page.locator('.card .item').first().waitFor()],
  ['board', `/boards/${facts.board}`, (page) => page.locator('.task').first().waitFor()],
  ['landing', '/landing', (page) => page.locator('.item').first().waitFor()],
  ['workers', '/workers', (page) => page.locator('table').first().waitFor()],
  ['rules', '/rules', (page) => page.getByRole('link', { name: 'ship/nightly' }).waitFor()],
  ['rule', '/rules/ship/nightly', (page) => page.getByText('Europe/Berlin').first().waitFor()],
  ['run-rounds', `${run(facts.stuck, 'list')}&step=count`, (page) => page.getByRole('complementary').getByText('round 3 of at most 5').waitFor()],
  ['run-path', `${run(facts.fan, 'graph')}&path=true`, (page) => page.locator('.legend').waitFor()],
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
  // A file with a hostile name is a name, and what is in it never runs as a page of this server.
  await page.goto(`${url}${run(facts.hostile, 'files')}`);
  const file = page.getByRole('link', { name: '<img src=x onerror=alert(1)>.html' });
  await file.waitFor();
  const got = await page.request.get(url + (await file.getAttribute('href')));
  check(got.headers()['content-security-policy'] === 'sandbox', 'an artifact is answered without a sandbox');
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
  expected.words = ['409', 'log/lines'];
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

/** Answers a question with a form: what is required is asked for, and the choice leads to its step. */
async function questionForm(page) {
  await page.goto(`${url}/questions`);
  const gate = page.locator('.question', { hasText: 'How is it released?' });
  await gate.getByText('“canary” continues at canary').waitFor();
  await gate.getByText('built', { exact: true }).waitFor();
  await gate.getByLabel('percent').fill('ninety');
  await gate.getByRole('button', { name: 'canary' }).click();
  await gate.getByText('reason must be set.').waitFor();
  await gate.getByLabel('reason').fill('a risky change');
  await gate.getByRole('button', { name: 'canary' }).click();
  await gate.getByText('percent must be a whole number.').waitFor();
  await gate.getByLabel('percent').fill('20');
  await gate.getByRole('button', { name: 'canary' }).click();
  await gate.getByText('answered: canary').waitFor();
  await page.goto(`${url}/runs/${facts.decide}/steps/canary`);
  await page.locator('.log').getByText('20 percent: a risky change').waitFor();
}

/** Talks to the agent of a failed step, sees what it did, and resumes the run. */
async function talk(page) {
  await page.goto(`${url}/agents/${facts.talks}/work`);
  const tool = page.locator('.tool', { hasText: 'echo wrong > made.txt' });
  await tool.waitFor();
  // An attempt that has just begun may not have a log yet.
  expected.words = ['404'];
  await page.getByLabel('Message to robot').fill('Use the word right.');
  await page.keyboard.press('Control+Enter');
  await page.locator('.said.person', { hasText: 'Use the word right.' }).first().waitFor();
  await page.getByText('Corrected.').waitFor();
  await page.getByRole('button', { name: 'Resume the run…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click();
  await page.goto(`${url}${run(facts.talks, 'list')}`);
  await page.locator('.head').getByText('completed').waitFor();
  expected.words = [];
}

/** Fires a rule, looks at its decision, pauses and resumes it. */
async function rules(page) {
  await page.goto(`${url}/rules/ship/nightly`);
  const dialog = page.getByRole('dialog');
  await page.getByRole('button', { name: 'Fire…' }).click();
  await dialog.getByRole('button', { name: 'Fire' }).click();
  await page.locator('.item', { hasText: 'started' }).getByRole('button', { name: 'Event' }).click();
  await page.locator('pre.output').waitFor();
  await page.getByRole('button', { name: 'Pause…' }).click();
  await dialog.getByRole('textbox').fill('for the holidays');
  await dialog.getByRole('button', { name: 'Pause' }).click();
  await page.getByText('None while it is paused').waitFor();
  await page.getByText('for the holidays').first().waitFor();
  await page.getByRole('button', { name: 'Resume…' }).click();
  await dialog.getByRole('button', { name: 'Resume' }).click();
  await page.getByText('Europe/Berlin').first().waitFor();
}

/** Skips a step that waits for a worker; acts on an explicit list of runs; keeps a view. */
async function actions(page) {
  const dialog = page.getByRole('dialog');
  await page.goto(`${url}${run(facts.stuck, 'list')}&step=never`);
  await page.getByRole('complementary').getByRole('button', { name: 'Skip…' }).click();
  await dialog.getByRole('listitem').getByText('after').waitFor();
  await dialog.getByRole('button', { name: 'Skip' }).click();
  await page.locator('.head').getByText('completed').waitFor();

  await page.goto(`${url}/runs?status=failed`);
  await page.getByRole('checkbox', { name: `Select run ${facts.failed}` }).check();
  await page.getByRole('button', { name: 'Retry…' }).click();
  await dialog.getByText('Exactly these runs').waitFor();
  await dialog.getByRole('listitem').getByText(facts.failed).waitFor();
  await dialog.getByRole('button', { name: 'Retry them' }).click();
  await page.getByText('1 run retried').waitFor();
  await page.getByRole('button', { name: 'Save view…' }).click();
  await dialog.getByRole('textbox').fill('Broken');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await page.goto(`${url}/runs`);
  await page.getByRole('link', { name: 'Broken' }).click();
  await page.waitForURL('**/runs?status=failed');
  await page.getByRole('button', { name: 'Forget the view Broken' }).click();
  await page.getByRole('link', { name: 'Broken' }).waitFor({ state: 'detached' });
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
  // Its other requests are answered with 404 too, or end here.
  await page.goto('about:blank');
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
  if (!only) await everyPage();
  const page = await newPage(browser);
  if (only) await signIn(page, url, token);
  const parts = [signingIn, hostileOutput, inputForm, questionForm, talk, rules, actions, review, badInput, killed];
  for (const part of parts.filter((part) => !only || only.includes(part.name))) {
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
