// Runs each example, and compares the page with the files.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import test from 'node:test';

import { Client } from 'fencepost-client';

import { example, file, folder, postgres, service } from './kit.mjs';

test('a critical section', async (t) => {
  const { url } = await service(t);
  const cwd = folder(t);
  const programs = [1, 2, 3].map(() => example(t, 'critical-section.mjs', { url, cwd }));
  for (const program of programs) await program.end();
  assert.equal(fs.readFileSync(`${cwd}/counter.txt`, 'utf8'), '60');
});

test('a job once per firing', async (t) => {
  const { url } = await service(t);
  const [first, second] = [await example(t, 'once.mjs', { url }).end(), await example(t, 'once.mjs', { url }).end()];
  assert.equal(first[1], 'wrote 17 pages');
  assert.deepEqual(second, ['has run already, with the exit code 0']);
});

test('a leader', async (t) => {
  const { url } = await service(t);
  const first = example(t, 'leader.mjs', { url });
  const [, token] = await first.line(/^leads, with the token (\d+)$/);
  const second = example(t, 'leader.mjs', { url });
  await second.line(/^is a candidate$/);
  first.process.kill('SIGTERM');
  assert.equal((await first.end()).at(-1), 'leads no more');
  const [, next] = await second.line(/^leads, with the token (\d+)$/);
  assert.ok(Number(next) > Number(token));
  second.process.kill('SIGINT');
  await second.end();
});

test('a fenced write into PostgreSQL', async (t) => {
  const DATABASE_URL = await postgres(t);
  const pg = await import('pg').catch(() => undefined);
  if (!DATABASE_URL || !pg) return t.skip(DATABASE_URL ? 'the package pg is missing' : 'PostgreSQL is missing');
  const { url } = await service(t);
  const database = new pg.default.Client({ connectionString: DATABASE_URL });
  await database.connect();
  const [, table] = /^\/\/ (CREATE TABLE .*)$/m.exec(fs.readFileSync(file('examples', 'fenced-write.mjs'), 'utf8'));
  await database.query(`${table} INSERT INTO stock (id, pieces) VALUES (42, 10)`);
  assert.deepEqual(await example(t, 'fenced-write.mjs', { url, env: { DATABASE_URL } }).end(), ['pieces left after each sale: 7, 8, 9']);
  await database.query('UPDATE stock SET token = 9000000000000000000');
  const late = example(t, 'fenced-write.mjs', { url, env: { DATABASE_URL } });
  await late.line(/a later holder was here/);
  assert.equal(await late.ended, 1);
  assert.deepEqual((await database.query('SELECT pieces FROM stock')).rows, [{ pieces: '7' }]);
  await database.end();
});

test('a wait with a limit', async (t) => {
  const { url } = await service(t);
  assert.deepEqual(await example(t, 'wait-limit.mjs', { url }).end(), ['imports']);
  const locks = new Client(url, { holder: 'the other import' });
  const lock = await locks.lock('import');
  assert.deepEqual(await example(t, 'wait-limit.mjs', { url }).end(), ['not now: the other import is at work']);
  await lock.release();
  await locks.close();
});

test('a sale of the last pieces', async (t) => {
  const { url } = await service(t);
  const cwd = folder(t);
  fs.writeFileSync(`${cwd}/stock.json`, '{"book": 5}');
  assert.deepEqual((await example(t, 'sale.mjs', { url, cwd }).end()).sort(), ['sold 5', 'sold out 15']);
  assert.equal(fs.readFileSync(`${cwd}/stock.json`, 'utf8'), '{"book":0}');
});

test('a handler of requests', async (t) => {
  const { url } = await service(t);
  const server = example(t, 'handler.mjs', { url, env: { PORT: '0' } });
  const [, address] = await server.line(/^listens at (.*)$/);
  const answers = await Promise.all([1, 2].map(async () => (await fetch(`${address}/7`)).text()));
  const tokens = answers.map((text) => Number(/^done with the token (\d+)\n$/.exec(text)[1]));
  assert.notEqual(tokens[0], tokens[1]);
  const locks = new Client(url);
  const lock = await locks.lock('order/8');
  assert.equal((await fetch(`${address}/8`)).status, 409);
  await lock.release();
  await locks.close();
  server.process.kill('SIGTERM');
  await server.end();
});

test('the page has the examples', () => {
  const page = fs.readFileSync(file('..', '..', 'docs', 'clients', 'node.md'), 'utf8');
  const blocks = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map(([, text]) => text);
  const examples = fs.readdirSync(file('examples')).map((name) => fs.readFileSync(file('examples', name), 'utf8'));
  assert.deepEqual(examples.filter((text) => !blocks.includes(text)).map((text) => text.split('\n')[0]), []);
  assert.equal(blocks.length, examples.length);
});
