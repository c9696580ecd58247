// The plan as a table: folds of equal layers with their rows, or rows by time, or stored arrays.
// Of a long table only what the window shows is in the page.
const HEIGHT = 44, MANY = 400;

class TableView {
  constructor(element, grid, { choose, toggle, enter }) {
    Object.assign(this, { element, grid, items: [], chosen: -1 });
    element.addEventListener("click", (event) => {
      const row = event.target.closest("[data-at]");
      if (!row) return;
      const at = Number(row.dataset.at);
      if (this.items[at].fold !== undefined) toggle(at);
      choose(at, true);
    });
    element.addEventListener("dblclick", (event) => event.target.closest("[data-at]") && enter());
    element.addEventListener("scroll", () => this.items.length > MANY && this.fill());
  }

  // An item is a row, a fold, an array or a heading; `make` gives its cells.
  draw(items, make, chosen) {
    Object.assign(this, { items, make, chosen });
    this.grid.setAttribute("aria-rowcount", items.length + 1);
    this.fill();
  }

  fill() {
    const count = this.items.length, all = count <= MANY, margin = 12;
    const first = all ? 0 : Math.max(0, Math.floor(this.element.scrollTop / HEIGHT) - margin);
    const last = all ? count : Math.min(count, first + Math.ceil((this.element.clientHeight || 800) / HEIGHT) + 2 * margin);
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(this.row(at));
    this.element.replaceChildren(...rows);
    this.element.style.setProperty("--above", `${first * HEIGHT}px`);
    this.element.style.setProperty("--below", `${(count - last) * HEIGHT}px`);
    this.mark(this.chosen);
  }

  row(at) {
    const { kind, level = 1, open, cells } = this.make(this.items[at]);
    return html("div", {
      role: "row", id: `row-${at}`, "data-at": at, class: `row ${kind}`, "aria-rowindex": at + 2, "aria-level": level,
      "aria-expanded": open === undefined ? null : String(open),
    }, ...cells);
  }

  mark(chosen, reveal = false) {
    this.chosen = chosen;
    if (reveal && chosen >= 0) this.reveal(chosen);
    for (const row of this.element.children) row.setAttribute("aria-selected", String(Number(row.dataset.at) === chosen));
    if (chosen >= 0) this.grid.setAttribute("aria-activedescendant", `row-${chosen}`);
    else this.grid.removeAttribute("aria-activedescendant");
  }

  reveal(at) {
    const top = at * HEIGHT, { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + HEIGHT > scrollTop + clientHeight) this.element.scrollTop = top + HEIGHT - clientHeight;
    if (this.items.length > MANY) this.fill();
  }
}

const cell = (kind, ...children) => html("div", { role: "gridcell", class: `cell-${kind}` }, ...children);
const small = (...children) => html("small", {}, ...children);
const percent = (share) => (share === null || share === undefined ? "" : `${(100 * share).toFixed(1)}%`);
const timed = (known) => (known.basis === "at least" ? `at least ${duration(known.seconds)}` : `${duration(known.seconds)} ${known.basis}`);

// Amounts and times in the words of the text that `bb.explain` prints.
function amount(number, unit = "B") {
  for (const prefix of ["", "k", "M", "G"]) {
    if (number < 1000) return `${Number(number.toPrecision(3))} ${prefix}${unit}`;
    number /= 1000;
  }
  return `${Number(number.toPrecision(4))} T${unit}`;
}

function duration(seconds) {
  for (const [unit, factor] of [["µs", 1e6], ["ms", 1e3]]) {
    if (seconds * factor < 9999.5) return `${Number((seconds * factor).toPrecision(4))} ${unit}`;
  }
  return `${Number(seconds.toPrecision(4))} s`;
}

function bar(share, kind) {
  const inner = html("i", { class: `share ${kind}` });
  inner.style.width = `${Math.min(100, Math.max(.5, 100 * (share || 0)))}%`;
  return html("span", { class: "share-room", "aria-hidden": "true" }, inner);
}

const moved = (read, written) => cell("bytes", `in ${amount(read)}`, small(`out ${amount(written)}`));

// The name of a step, with its module where that is one: `linear (up)`.
const titled = (row) => ((row.modules || []).length === 1 ? `${row.name} (${row.modules[0]})` : row.name);

function rowCells(row, { where = "" } = {}) {
  const times = row.steps.length > 1 ? ` × ${row.steps.length}` : "";
  const rival = row.rival ? `; ${row.rival.words}` : row.reason ? `; ${row.reason}` : "";
  const modules = (row.modules || []).length > 1 ? `${row.modules.join(", ")}: ` : "";
  return [
    cell("name", html("b", {}, titled(row)), small(where ? `${where}; ` : "", modules, row.by, rival)),
    cell("time", row.time ? `${duration(row.time.seconds)}${times}` : "–", small(row.time ? row.time.basis : "not known")),
    cell("share", percent(row.share), bar(row.share, row.kind)),
    moved(row.bytes_read, row.bytes_written),
  ];
}

function foldCells(fold, rows, open) {
  const read = rows.reduce((sum, row) => sum + row.bytes_read, 0), written = rows.reduce((sum, row) => sum + row.bytes_written, 0);
  const alike = fold.count > 1 ? `${fold.count} layers alike, ` : "";
  return [
    cell("name", html("b", {}, html("i", { class: "twist", "aria-hidden": "true" }, open ? "▾" : "▸"), fold.title),
      small(`${alike}${rows.length} step${rows.length === 1 ? "" : "s"}${fold.differs ? `; ${fold.differs}` : ""}`)),
    cell("time", fold.seconds ? duration(fold.seconds) : "–", small(fold.count > 1 ? "all layers" : "")),
    cell("share", percent(fold.share), bar(fold.share, "fold")),
    moved(read, written),
  ];
}

const DECIDED = {
  cost: ["cost", "fusing it would not be faster, or was not tried"], order: ["order", "another step has to run between the two"],
  misc: ["no kernel", "an operator that no kernel computes"], guard: ["rule", "no rule fuses it"], result: ["result", "a result of the model"],
};

function arrayCells(array, name, where) {
  const ends = array.from === array.to && !array.crosses ? `within ${name(array.from)}` : `${name(array.from)} → ${array.to === null ? "result" : name(array.to)}`;
  return [
    cell("name", html("b", {}, ends), small(where ? `${where}: ` : "", array.reason)),
    cell("time", amount(array.bytes * array.count), small(array.count > 1 ? `${array.count} × ${amount(array.bytes)}` : "")),
    cell("share", html("span", { class: `badge by-${array.decided}`, title: DECIDED[array.decided][1] }, DECIDED[array.decided][0])),
    cell("bytes", array.fused === null ? "" : `${array.basis === "at least" ? "≥ " : ""}${duration(array.fused)}`, small(array.now === null ? "" : `now ${duration(array.now)}`)),
  ];
}
