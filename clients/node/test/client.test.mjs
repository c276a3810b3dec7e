// What behaviour.json does not have: the ways of Node.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { once } from 'node:events';
import http from 'node:http';
import test from 'node:test';
import util from 'node:util';

import * as fencepost from 'fencepost-client';

import { service } from './kit.mjs';

const { BusyError, Client, InvalidError, LostError, TimedOutError, UnreachableError } = fencepost;

test('import and require give the same classes', () => {
  const required = createRequire(import.meta.url)('fencepost-client');
  assert.deepEqual(Object.keys(required).sort(), Object.keys(fencepost).filter((name) => !/^(default|module.exports)$/.test(name)).sort());
  assert.equal(required.LostError, LostError);
});

test('nothing that is printed has a secret', async (t) => {
  let lease, key;
  const { url } = await service(t);
  const answers = http.createServer(async (request, response) => {
    key ??= request.headers['idempotency-key'];
    const parts = [];
    for await (const part of request) parts.push(part);
    const headers = { 'Content-Type': 'application/json', ...(key ? { 'Idempotency-Key': key } : {}) };
    const passed = await fetch(url + request.url, { method: 'POST', headers, body: Buffer.concat(parts) });
    const text = await passed.text();
    if (passed.status === 200) ({ lease } = JSON.parse(text));
    response.writeHead(passed.status, { 'Content-Type': 'application/json' }).end(passed.status === 204 ? undefined : text);
  }).listen(0, '127.0.0.1');
  t.after(() => answers.close());
  await once(answers, 'listening');
  const locks = new Client(`http://127.0.0.1:${answers.address().port}`, { token: 'the-access-token' });
  const lock = await locks.lock('secrets');
  const failure = await locks.lock('', { wait: 0 }).catch((error) => error);
  assert.ok(failure instanceof InvalidError && lease.length > 20 && key.length > 20);
  const printed = [locks, lock, failure].map((one) => util.inspect(one, { depth: 20, showHidden: true }) + JSON.stringify(one)).join();
  for (const secret of [lease, key, 'the-access-token']) assert.ok(!printed.includes(secret));
  await lock.release();
  await locks.close();
});

test('code beside the body of a lock does not enter it, and code in the body does', async (t) => {
  const { url } = await service(t);
  const locks = new Client(url);
  let inside = 0, most = 0;
  const work = () => locks.run('inner', async () => {
    most = Math.max(most, ++inside);
    await locks.run('inner', (nested) => nested.ensureHeld());
    inside -= 1;
  });
  await locks.run('outer', () => Promise.all([work(), work(), work()]));
  assert.equal(most, 1);
  // Code that outlives the body asks for a lock of its own.
  let later, ended;
  const hasEnded = new Promise((resolve) => { ended = resolve; });
  const token = await locks.run('outer', (lock) => {
    later = hasEnded.then(() => locks.tryLock('outer'));
    return lock.token;
  });
  ended();
  const lock = await later;
  assert.ok(lock.token > token);
  await lock.release();
  await locks.close();
});

test('an aborted signal ends a wait with its reason, and not a lock', async (t) => {
  const { url } = await service(t);
  const locks = new Client(url);
  const reason = new Error('enough');
  await assert.rejects(locks.lock('job', { signal: AbortSignal.abort(reason) }), reason);
  for (const hold of [false, true]) {
    const cancel = new AbortController();
    const lock = await locks.lock(`job ${hold}`, { signal: cancel.signal, hold });
    const waits = assert.rejects(locks.lock(`job ${hold}`, { signal: cancel.signal, hold }), reason);
    cancel.abort(reason);
    await waits;
    lock.ensureHeld();
    await lock.release();
    assert.throws(() => lock.ensureHeld(), { loss: 'released' });
    assert.equal(lock.signal.aborted, false);
  }
  await locks.close();
});

test('busy, timed out and unreachable are told apart', async (t) => {
  const { url } = await service(t);
  const locks = new Client([url], { holder: 'first' });
  const lock = await locks.lock('job', { hold: true });
  for (const hold of [false, true]) {
    await assert.rejects(locks.lock('job', { wait: 0, hold }), (error) => error instanceof BusyError && !(error instanceof TimedOutError));
    await assert.rejects(locks.lock('job', { wait: 300, hold }), (error) => error instanceof TimedOutError && error.holders[0].holder === 'first');
  }
  assert.equal(await locks.tryLock('job'), undefined);
  await lock.release();
  await assert.rejects(new Client('http://127.0.0.1:1').lock('job', { wait: 0 }), UnreachableError);
  await assert.rejects(locks.lock('job', { wait: 'soon' }), InvalidError);
  assert.throws(() => new Client('http://user:secret@host'), (error) => error instanceof InvalidError && !/secret/.test(error.message));
  await locks.close();
});
