import { expect, test } from 'vitest';
import { parsePatch } from './patch';

const PATCH = `diff --git a/src/a.rs b/src/a.rs
index 1..2 100644
--- a/src/a.rs
+++ b/src/a.rs
@@ -1,3 +1,4 @@ fn main() {
 one
-two
+deux
+--- not a header
 three
diff --git a/new.txt b/new.txt
new file mode 100644
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+hello
\\ No newline at end of file
diff --git a/x.png b/x.png
Binary files a/x.png and b/x.png differ
diff --git "a/\\303\\251.txt" "b/\\303\\251.txt"
deleted file mode 100644
--- "a/\\303\\251.txt"
+++ /dev/null
@@ -1 +0,0 @@
-gone
`;

test('files, hunks and line numbers', () => {
  const files = parsePatch(PATCH);
  expect(files.map((file) => [file.path, file.change, file.added, file.removed, file.binary])).toEqual([
    ['src/a.rs', 'changed', 2, 1, false],
    ['new.txt', 'added', 1, 0, false],
    ['x.png', 'changed', 0, 0, true],
    ['é.txt', 'removed', 0, 1, false],
  ]);
  expect(files[0]?.hunks[0]?.lines[3]).toEqual({ kind: 'add', new: 3, text: '--- not a header' });
  expect(files[0]?.hunks[0]?.lines.at(-1)).toEqual({ kind: 'ctx', old: 3, new: 4, text: 'three' });
  expect(files[1]?.hunks[0]?.lines.at(-1)?.kind).toBe('note');
  expect(parsePatch('')).toEqual([]);
});
