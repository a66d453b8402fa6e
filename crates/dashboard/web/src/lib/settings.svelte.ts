// The user's own settings: theme and time zone. They stay in the browser; no token is ever among them.

export type Theme = 'system' | 'light' | 'dark';
export type Zone = 'local' | 'utc';

function stored<T extends string>(key: string, allowed: readonly T[], usual: T): T {
  try {
    const value = localStorage.getItem(key) as T | null;
    return value && allowed.includes(value) ? value : usual;
  } catch {
    return usual;
  }
}

export const settings = $state({
  theme: stored<Theme>('sprag-theme', ['system', 'light', 'dark'], 'system'),
  zone: stored<Zone>('sprag-zone', ['local', 'utc'], 'local'),
});

export function applyTheme(): void {
  const root = document.documentElement;
  if (settings.theme === 'system') root.removeAttribute('data-theme');
  else root.setAttribute('data-theme', settings.theme);
}

export function keep(key: 'theme' | 'zone', value: string): void {
  (settings as Record<string, string>)[key] = value;
  try {
    localStorage.setItem(`sprag-${key}`, value);
  } catch {
    // A browser without storage forgets the setting, nothing else.
  }
  applyTheme();
}
