// The pages by their addresses. Each is loaded when it is first opened; the server names the scripts of the first one in a
// header, from the same table (`routes.json`), so that they arrive together with the frame.
import type { Component } from 'svelte';
import routes from './routes.json';

export type Page = Component<Record<string, never>>;
const files = import.meta.glob<{ default: Page }>(['../pages/*.svelte', '!../pages/SignIn.svelte']);

const forms = Object.entries(routes).map(([form, name]) => ({ parts: form.split('/'), name }));

/** Returns the name of the page at a path; nothing if there is none. */
export function pageName(path: string): string | undefined {
  const parts = path.split('/');
  return forms.find((form) => form.parts.length === parts.length && form.parts.every((part, at) => part === '*' || part === parts[at]))?.name;
}

/** Loads the page at a path; nothing if there is none. */
export function loadPage(path: string): Promise<Page> | undefined {
  const name = pageName(path);
  return name === undefined ? undefined : files[`../pages/${name}.svelte`]?.().then((found) => found.default);
}
