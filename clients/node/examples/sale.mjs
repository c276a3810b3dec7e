// Sells the last pieces of a stock to many buyers at the same time, and none too many.
import { readFile, writeFile } from 'node:fs/promises';

import { BusyError, Client } from 'fencepost-client';

const locks = new Client();

async function buy(item) {
  try {
    return await locks.run(`stock/${item}`, async (lock) => {
      const stock = JSON.parse(await readFile('stock.json', 'utf8'));
      if (stock[item] === 0) return 'sold out';
      stock[item] -= 1;
      lock.ensureHeld();
      await writeFile('stock.json', JSON.stringify(stock));
      return 'sold';
    }, { wait: '30s' });
  } catch (error) {
    if (error instanceof BusyError) return 'try again later';
    throw error;
  }
}

const answers = await Promise.all(Array.from({ length: 20 }, () => buy('book')));
for (const answer of new Set(answers)) console.log(answer, answers.filter((one) => one === answer).length);
await locks.close();
