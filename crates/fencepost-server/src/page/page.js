// Keeps the page live: puts each part that the service sends in the place of the earlier one, and counts times between.
"use strict";
const live = document.getElementById("live");
const table = document.getElementById("locks");
// By how many milliseconds the clock of this browser is ahead of the service.
let ahead = Date.now() - Number(document.querySelector("meta[name=now]").content);
let events;

function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// Puts a part in the place of another. The keyboard's focus, open lists and the lengths of bars stay.
function swap(before, after) {
  const focused = before.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  if (before.querySelector("details[open]")) after.querySelector("details")?.setAttribute("open", "");
  for (const bar of after.querySelectorAll("progress")) {
    const same = before.querySelector(`progress[data-token="${bar.dataset.token}"]`);
    if (same) bar.max = same.max;
  }
  before.replaceWith(after);
  if (focused) after.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function apply(patch) {
  ahead = Date.now() - patch.now;
  for (const [id, html] of Object.entries(patch.sections)) {
    const before = document.getElementById(id);
    if (before) swap(before, made(html));
  }
  const shown = new Map(Array.from(table.tBodies, (rows) => [rows.dataset.lock, rows]));
  const order = new Set(patch.order);
  for (const [name, rows] of shown) if (!order.has(name)) rows.remove();
  let last = table.tHead;
  for (const name of patch.order) {
    let rows = shown.get(name);
    if (Object.hasOwn(patch.rows, name)) {
      const changed = made(patch.rows[name]);
      if (rows) swap(rows, changed);
      rows = changed;
    }
    if (!rows) continue;
    if (last.nextElementSibling !== rows) last.after(rows);
    last = rows;
  }
  count();
}

// The same as the service writes.
function time(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${(ms / 1000).toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function count() {
  const now = Date.now() - ahead;
  for (const age of document.querySelectorAll("[data-since]")) {
    age.textContent = time(Math.max(0, now - Number(age.dataset.since)));
  }
  for (const lease of document.querySelectorAll("[data-until]")) {
    const left = Math.max(0, Number(lease.dataset.until) - now);
    lease.textContent = time(left);
    const bar = lease.nextElementSibling;
    // The longest time that was left is the length of the lease, as far as this page knows.
    bar.max = Math.max(bar.max, left);
    bar.value = left;
    bar.hidden = false;
  }
}

function say(text, away) {
  if (live.textContent !== text) live.textContent = text;
  document.body.classList.toggle("away", away);
}

function connect() {
  events?.close();
  events = new EventSource("live" + location.search);
  const own = events;
  own.addEventListener("open", () => say("Live", false));
  own.addEventListener("patch", (event) => {
    say("Live", false);
    apply(JSON.parse(event.data));
  });
  own.addEventListener("unreachable", () => say("The engine does not answer. This is its last known state.", true));
  own.addEventListener("error", () => {
    say("The service does not answer. This is its last known state.", true);
    // A browser connects again by itself, but not after a refusal.
    if (own.readyState === EventSource.CLOSED) setTimeout(() => own === events && connect(), 5000);
  });
}

const form = document.querySelector("form[role=search]");
let due;
form?.addEventListener("input", () => {
  clearTimeout(due);
  due = setTimeout(() => {
    history.replaceState(null, "", "?" + new URLSearchParams(new FormData(form)));
    connect();
  }, 200);
});
connect();
count();
setInterval(count, 250);
