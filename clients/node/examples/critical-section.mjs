// Counts in a file, together with other processes.
import { readFile, writeFile } from 'node:fs/promises';

import { Client } from 'fencepost-client';

const locks = new Client();

async function count() {
  return locks.run('counter', async (lock) => {
    const value = Number(await readFile('counter.txt', 'utf8').catch(() => '0')) + 1;
    lock.ensureHeld();          // before each step that cannot be undone
    await writeFile('counter.txt', String(value));
    return value;
  });
}

const values = await Promise.all(Array.from({ length: 20 }, count));
console.log('counted to', Math.max(...values));
await locks.close();
