// Compiles a program in TypeScript for both kinds of modules, and runs it.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import test from 'node:test';

import { file, service } from './kit.mjs';

test('the types fit, and `await using` releases', async (t) => {
  let compiler;
  try {
    compiler = createRequire(import.meta.url).resolve('typescript/bin/tsc');
  } catch {
    return t.skip('the package typescript is missing');
  }
  // In the package, so that the compiled program finds it by its name.
  const out = fs.mkdtempSync(file('test', '.types-'));
  t.after(() => fs.rmSync(out, { recursive: true }));
  const options = ['--strict', '--target', 'es2022', '--lib', 'es2022,esnext.disposable', '--module', 'nodenext', '--types', 'node'];
  const sources = ['types.mts', 'types.cts'].map((name) => file('test', name));
  const places = ['--rootDir', file(), '--outDir', out];
  const done = spawnSync(process.execPath, [compiler, ...options, ...places, ...sources], { encoding: 'utf8', cwd: file() });
  assert.equal(done.status, 0, done.stdout);
  const { url } = await service(t);
  const { use } = await import(`${out}/test/types.mjs`);
  assert.deepEqual(await use([url]), ['held true', 'second undefined', 'busy types', 'after false released', 'sum 1']);
});
