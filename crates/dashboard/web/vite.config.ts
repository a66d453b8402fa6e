// Builds the page into ../dist: no inline script or style, file names with the hash of their content.
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

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

export default defineConfig({
  plugins: [svelte(), lineEnds()],
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
