// Builds the page into ../dist: no inline script or style, file names with the hash of their content.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';
import routes from './src/lib/routes.json' with { type: 'json' };

/** Ends every written file with a line end, as all text files of the repository do. */
function lineEnds(): Plugin {
  return {
    name: 'line-ends',
    enforce: 'post',
    generateBundle(_, bundle) {
      for (const file of Object.values(bundle)) {
        if (file.type === 'chunk') {
          if (!file.code.endsWith('\n')) file.code += '\n';
        } else if (typeof file.source === 'string' && !file.source.endsWith('\n')) {
          file.source += '\n';
        }
      }
    },
  };
}

/**
 * Writes the scripts that each page needs besides those of the frame: a line per form of a path. The server names them in a
 * header, so that they are fetched while the first script is still being read.
 */
function preloads(): Plugin {
  return {
    name: 'preloads',
    generateBundle(_, bundle) {
      const chunks = Object.values(bundle).filter((file) => file.type === 'chunk');
      const closure = (name: string, seen = new Set<string>()): Set<string> => {
        if (seen.has(name)) return seen;
        seen.add(name);
        chunks.find((chunk) => chunk.fileName === name)?.imports.forEach((next) => closure(next, seen));
        return seen;
      };
      const frame = new Set(chunks.filter((chunk) => chunk.isEntry).flatMap((chunk) => [...closure(chunk.fileName)]));
      const lines = Object.entries(routes).map(([form, page]) => {
        const chunk = chunks.find((chunk) => chunk.facadeModuleId?.endsWith(`/pages/${page}.svelte`));
        if (!chunk) throw new Error(`no chunk for ${page}`);
        return [form, ...[...closure(chunk.fileName)].filter((name) => !frame.has(name))].join(' ');
      });
      this.emitFile({ type: 'asset', fileName: 'preloads.txt', source: `${lines.join('\n')}\n` });
    },
  };
}

export default defineConfig({
  plugins: [svelte(), preloads(), lineEnds()],
  build: {
    outDir: '../dist',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
  },
  // `npx vite` beside a server: the API comes from it.
  server: { proxy: { '/v1': 'http://127.0.0.1:7717' } },
  test: { include: ['src/**/*.test.ts'] },
} as Parameters<typeof defineConfig>[0]);
