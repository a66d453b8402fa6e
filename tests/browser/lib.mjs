// A browser for tests of the dashboard. Any console error, script error or violation of the page's policy is a problem,
// unless the test expects it.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export const problems = [];
/** Words of console errors that are expected at this moment. */
export const expected = { words: [] };

export function check(condition, message) {
  if (!condition) problems.push(message);
}

export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    headless: true,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
}

/** Opens a page with cookies of its own. */
export async function newPage(browser, { theme = 'light', width = 1280, clock } = {}) {
  const context = await browser.newContext({ colorScheme: theme, viewport: { width, height: width < 600 ? 740 : 800 }, bypassCSP: false, reducedMotion: 'reduce' });
  const page = await context.newPage();
  if (clock) await page.clock.install({ time: clock });
  page.setDefaultTimeout(60_000);
  page.setDefaultNavigationTimeout(60_000);
  page.on('console', (message) => {
    if (message.type() !== 'error' && message.type() !== 'warning') return;
    const text = `${message.text()} ${message.location().url ?? ''}`;
    if (!expected.words.some((word) => text.includes(word))) problems.push(`console: ${text}`);
  });
  page.on('pageerror', (error) => problems.push(`script error: ${error}`));
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (event) => console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
  });
  return page;
}

export async function signIn(page, url, token) {
  expected.words = ['401'];
  await page.goto(url);
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Now' }).waitFor();
  expected.words = [];
}

export async function accessible(page, name) {
  // The policy lets no inline script in; the debugger's own evaluation is not bound by it.
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }));
  for (const one of found.violations) {
    const where = one.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ''}`);
    problems.push(`${name}: ${one.id}: ${one.help}: ${where.join(' | ')}`);
  }
}
