#!/usr/bin/env node
// Starts the program of the package for this platform, passes signals on, and ends as the program did.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const platform = `fencepost-cli-${process.platform}-${process.arch}`;

let program;
try {
  program = require.resolve(`${platform}/bin/fencepost`);
} catch {
  console.error(
    `fencepost: the package ${platform} is not installed. Either this platform has none (there is one for linux-x64 and one for ` +
      "linux-arm64), or npm ran with --omit=optional or --no-optional: install fencepost-cli again without it."
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends these to the program as well.
const both = process.stdin.isTTY ? ["SIGINT", "SIGQUIT"] : [];
for (const signal of ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => both.includes(signal) || child.kill(signal));
}
child.on("error", (error) => {
  console.error(`fencepost: ${program} cannot be run: ${error.message}`);
  process.exit(126);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
