// Puts the present locks in the place of the old ones: when the service tells of a change, and every 10 s.
"use strict";
let asked = false;
async function look() {
  if (asked) return;
  asked = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    // A search that is being typed stays.
    for (const part of ["header p", "main"]) {
      document.querySelector(part).replaceWith(page.querySelector(part));
    }
    document.body.classList.remove("away");
  } catch {
    document.body.classList.add("away");
  }
  asked = false;
}
// Counts the ages and leases on the page until the next look.
function count() {
  for (const cell of document.querySelectorAll("[data-step]")) {
    const seconds = Math.max(0, parseFloat(cell.textContent) + Number(cell.dataset.step));
    cell.textContent = `${seconds.toFixed(1)} s`;
  }
}
let due;
function soon() {
  clearTimeout(due);
  due = setTimeout(look, 100);
}
const changes = new EventSource("/v1/changes");
for (const event of ["changed", "free", "unreachable"]) changes.addEventListener(event, soon);
changes.addEventListener("error", soon);
setInterval(count, 1000);
setInterval(look, 10000);
