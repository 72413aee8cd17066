"use strict";
// Sorts a table by the column whose heading is pressed. Rows of one tbody belong together and stay together.
function valueOf(body, column) {
  const cell = body.rows[0].cells[column];
  const text = cell ? cell.textContent.trim() : "";
  const number = Number.parseFloat(text.replace(/[~,<]/g, ""));
  return { text, number };
}
function compare(a, b) {
  const numbers = !Number.isNaN(a.number) && !Number.isNaN(b.number);
  if (numbers) return a.number - b.number;
  // In rising order, cells without a number come after the numbers.
  if (Number.isNaN(a.number) !== Number.isNaN(b.number)) return Number.isNaN(a.number) ? 1 : -1;
  return a.text.localeCompare(b.text);
}
for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const rising = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const sorted = [...table.tBodies].map((body) => ({ body, value: valueOf(body, column) }));
    sorted.sort((a, b) => (rising ? compare(a.value, b.value) : compare(b.value, a.value)));
    for (const { body } of sorted) table.append(body);
  });
}
// Shows the sections of the machine that is chosen, and those that belong to no machine.
for (const choice of document.querySelectorAll("fieldset.machines input")) {
  choice.addEventListener("change", () => {
    for (const section of document.querySelectorAll("[data-machine]")) {
      const { machine } = section.dataset;
      section.hidden = choice.value !== "" && machine !== "" && machine !== choice.value;
    }
  });
}
// Says of a region that is cut off at the right that it scrolls. A region in a closed part has no width yet.
const measured = new ResizeObserver((entries) => {
  requestAnimationFrame(() => {
    for (const { target } of entries) target.classList.toggle("wide", target.scrollWidth > target.clientWidth);
  });
});
for (const region of document.querySelectorAll(".scroll")) measured.observe(region);
// On paper nothing can be opened, so everything is open.
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const details of closed) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
});
// On a narrow screen the contents come before the report, so they start closed.
const contents = document.querySelector("details.contents");
if (window.matchMedia("(max-width: 79.99rem)").matches) contents.open = false;
// A link to something inside a closed part opens that part.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
}
window.addEventListener("hashchange", reveal);
reveal();
