// redlock for Node.js on the measuring line: see ../README.md for the words it is spoken to with.
"use strict";

const { createRequire } = require("node:module");
const readline = require("node:readline");
// Its packages are installed in the build folder, not beside this file.
const installed = createRequire(process.env.PEERS_NODE + "/");
const Redis = installed("ioredis");
const Redlock = installed("redlock");

const LEASE = 30_000;
const [word, urls, ...rest] = process.argv.slice(2);
const clients = urls.split(",").map((url) => new Redis(url));
// Its own delay of 200 ms and jitter of 100 ms; as many tries as fit into 20 s.
const locks = new Redlock(clients, { retryCount: 80, retryDelay: 200, retryJitter: 100 });

const lock = (name) => locks.lock(name, LEASE);
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

async function cycle(count) {
  const times = [];
  for (let number = -count; number < count; number++) {
    const start = performance.now();
    const held = await lock("uncontended");
    await held.unlock();
    // As many again before, for the compiler to warm up.
    if (number >= 0) times.push((performance.now() - start) * 1000);
  }
  times.sort((one, other) => one - other);
  console.log(JSON.stringify({ p50: times[count >> 1] }));
}

async function tasks(count, seconds) {
  const start = performance.now();
  const work = async (name) => {
    let cycles = 0;
    while (performance.now() - start < seconds * 1000) {
      const held = await lock(name);
      await held.unlock();
      cycles++;
    }
    return cycles;
  };
  const all = await Promise.all(Array.from({ length: count }, (_, task) => work(`task/${task}`)));
  const cycles = all.reduce((sum, cycles) => sum + cycles, 0);
  console.log(JSON.stringify({ rate: (cycles * 1000) / (performance.now() - start) }));
}

// Lets tasks take and release one lock for some seconds. Returns how often they were granted it.
async function load(name, count, seconds) {
  const end = performance.now() + seconds * 1000;
  let grants = 0;
  const work = async () => {
    while (performance.now() < end) {
      try {
        const held = await lock(name);
        if (performance.now() < end) grants++;
        await held.unlock();
      } catch {
        // Counted as not granted.
      }
    }
  };
  await Promise.all(Array.from({ length: count }, work));
  return grants;
}

async function drain(name) {
  console.log("ready");
  let held;
  let waiting = [];
  const turn = async () => {
    try {
      const mine = await lock(name);
      const granted = now();
      await mine.unlock();
      return granted;
    } catch {
      return 0; // Counted as not granted.
    }
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [word, count, seconds] = line.split(" ");
    if (word === "hold") {
      held = await lock(name);
      console.log("held");
    } else if (word === "line") {
      waiting = Array.from({ length: Number(count) }, turn);
      console.log("waiting");
    } else if (word === "load") {
      console.log(`loaded ${await load(name, Number(count), Number(seconds))}`);
    } else if (word === "free") {
      console.log(`freed ${now()}`);
      await held.unlock();
    } else {
      const granted = (await Promise.all(waiting)).filter((at) => at > 0);
      console.log(["done", ...granted].join(" "));
    }
  }
}

const measured = { cycle: () => cycle(Number(rest[0])), tasks: () => tasks(Number(rest[0]), Number(rest[1])), drain: () => drain(rest[0]) };
measured[word]().then(() => process.exit(0));
