import fencepost = require('fencepost-client');

export const locks: fencepost.Client = new fencepost.Client('http://127.0.0.1:7070');
// @ts-expect-error A lock has no such option, and compilers say so.
export const mistake = locks.lock('name', { wiat: 1 });
