// The address is the state: pages read path, query and hash from here, and write them through `go` and `setQuery`.

export const place = $state({
  path: location.pathname,
  query: new URLSearchParams(location.search),
  hash: location.hash,
});

function read(): void {
  place.path = location.pathname;
  place.query = new URLSearchParams(location.search);
  place.hash = location.hash;
}

addEventListener('popstate', read);
addEventListener('hashchange', read);

/** Opens an address of this page. */
export function go(url: string, replace = false): void {
  if (replace) history.replaceState(null, '', url);
  else history.pushState(null, '', url);
  const before = place.path;
  read();
  if (place.path !== before) scrollTo(0, 0);
}

/** Changes parts of the query; an empty value removes its key. */
export function setQuery(changes: Record<string, string | null | undefined>, replace = true): void {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  go(`${location.pathname}${text ? `?${text}` : ''}${location.hash}`, replace);
}

/** Follows links within the page without loading it again. */
export function onClick(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element | null)?.closest('a');
  if (!link || link.target || link.hasAttribute('download') || link.origin !== location.origin) return;
  if (link.pathname.startsWith('/v1/') || link.pathname === '/openapi.json') return;
  event.preventDefault();
  go(link.pathname + link.search + link.hash);
}

export function runUrl(run: string, tab?: string): string {
  return `/runs/${encodeURIComponent(run)}${tab ? `?tab=${tab}` : ''}`;
}

export function stepUrl(run: string, step: string): string {
  return `/runs/${encodeURIComponent(run)}/steps/${encodeURIComponent(step)}`;
}

export function threadPage(run: string, step: string): string {
  return `/agents/${encodeURIComponent(run)}/${encodeURIComponent(step)}`;
}

/** The page of a rule: its name is that of its pipeline, a slash, and its id. */
export function rulePage(name: string): string {
  const at = name.indexOf('/');
  return `/rules/${encodeURIComponent(name.slice(0, at))}/${encodeURIComponent(name.slice(at + 1))}`;
}
