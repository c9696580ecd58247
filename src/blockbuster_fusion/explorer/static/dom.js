// Elements and numbers. Text enters the page as text nodes and attributes only, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Opens the help at its top, wherever its first button is.
function help() {
  byId("dialog").showModal();
  byId("dialog-title").focus();
}

function scaled(number, units) {
  let at = 0;
  while (Math.abs(number) >= 999.5 && at < units.length - 1) { number /= 1000; at += 1; }
  const digits = at === 0 ? String(Math.round(number)) : Number(number.toPrecision(3)).toString();
  return units[at] ? `${digits} ${units[at]}` : digits;
}
const bytes = (number) => scaled(number, ["B", "kB", "MB", "GB", "TB"]);
const count = (number) => scaled(number, ["", "k", "M", "G", "T", "P"]);
const time = (seconds) => scaled(seconds * 1e9, ["ns", "µs", "ms", "s"]);

const COSTS = [
  { name: "edges", title: "Buffered edges", text: (n) => String(n) },
  { name: "traffic", title: "Traffic", text: bytes },
  { name: "flops", title: "Operations", text: count },
  { name: "local", title: "Local memory", text: bytes },
];
