// Keeps the page live: puts each part that the service sends in the place of the earlier one, and counts times between.
"use strict";
const live = document.getElementById("live");
const present = document.getElementById("now");
const table = document.getElementById("locks");
// By how many milliseconds the clock of this browser is ahead of the service.
let ahead = Date.now() - Number(document.querySelector("meta[name=now]").content);
let events;
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric" });
const zone = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });

function made(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// Finds an element in the part that takes the place of its own.
function same(element) {
  const { key } = element.dataset;
  return key ? `[data-key="${CSS.escape(key)}"]` : `[href="${CSS.escape(element.getAttribute("href") ?? "")}"]`;
}

// Puts a part in the place of another. The keyboard's focus, open lists and the lengths of bars stay.
function swap(before, after) {
  const focused = before.contains(document.activeElement) ? same(document.activeElement) : undefined;
  for (const open of before.querySelectorAll("details[open]")) {
    after.querySelector(`details[data-key="${CSS.escape(open.dataset.key)}"]`)?.setAttribute("open", "");
  }
  for (const lease of after.querySelectorAll("[data-until]")) {
    const bar = before.querySelector(`[data-token="${lease.dataset.token}"] + progress`);
    if (bar) lease.after(bar);
  }
  local(after);
  before.replaceWith(after);
  if (focused) after.querySelector(focused)?.focus();
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
      else local(changed);
      rows = changed;
    }
    if (!rows) continue;
    if (last.nextElementSibling !== rows) last.after(rows);
    last = rows;
  }
  count();
}

// Shows times in the zone of the reader. The service knows UTC alone.
function local(part) {
  for (const time of part.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    const today = at.toDateString() === new Date().toDateString();
    time.title = `${time.textContent} UTC`;
    time.textContent = (today ? "" : day.format(at) + " ") + clock.format(at);
  }
}

// The same as the service writes.
function time(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${(ms / 1000).toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// The present time, and the zone of all times.
function tell(now) {
  const name = zone.formatToParts(now).find((part) => part.type === "timeZoneName").value;
  const text = `${day.format(now)} ${clock.format(now)}, times are ${name}`;
  if (present.textContent !== text) present.textContent = text;
}

function count() {
  const now = Date.now() - ahead;
  tell(now);
  for (const age of document.querySelectorAll("[data-since]")) {
    age.textContent = time(Math.max(0, now - Number(age.dataset.since)));
  }
  for (const lease of document.querySelectorAll("[data-until]")) {
    const left = Math.max(0, Number(lease.dataset.until) - now);
    lease.textContent = time(left);
    let bar = lease.nextElementSibling;
    if (!bar) {
      bar = document.createElement("progress");
      bar.max = 1;
      bar.setAttribute("aria-hidden", "true");
      lease.after(bar);
    }
    // The longest time that was left is the length of the lease, as far as this page knows.
    bar.max = Math.max(bar.max, left);
    bar.value = left;
  }
}

function say(text, away) {
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("on", !away);
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
// The key / leads to the search, as on many pages.
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  event.preventDefault();
  form?.elements.search.focus();
});
connect();
local(document);
count();
setInterval(count, 250);
