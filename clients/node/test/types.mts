// Compiled by the tests: the types fit the way in which programs use the client, and `await using` works.
import { BusyError, Client, type Lock, LostError, type Once } from 'fencepost-client';

export async function use(urls: string[]): Promise<string[]> {
  const told: string[] = [];
  await using locks = new Client(urls, { ttl: '10s', holder: 'types' });
  let kept: Lock;
  {
    await using lock = await locks.lock('types', { wait: '5s', signal: AbortSignal.timeout(10_000) });
    kept = lock;
    told.push(`held ${lock.isHeld()}`);
    const second: Lock | undefined = await locks.tryLock('types');
    told.push(`second ${second?.token}`);
    try {
      await locks.lock('types', { wait: 0 });
    } catch (error) {
      if (!(error instanceof BusyError)) throw error;
      told.push(`busy ${error.holders[0].holder}`);
    }
  }
  told.push(`after ${kept.isHeld()} ${kept.loss instanceof LostError && kept.loss.loss}`);
  const sum: number = await locks.run('types', async (lock) => lock.token > kept.token ? 1 : 0, { permits: 3, take: 2 });
  told.push(`sum ${sum}`);
  return told;
}

export const job = (locks: Client): Promise<Once<number>> => locks.once('job', { window: '24h', retry: true }, () => 1);
