// The page of a model: rows in folds, one of them selected; everything else follows from it.
const data = JSON.parse(byId("data").textContent);
const folds = data.sections.flatMap((each, number) => each.layers.map((layers, at) => ({ ...layers, section: number, heading: data.sections.length > 1 && at === 0 ? each.title : "" })));
const foldOf = folds.flatMap((fold, number) => Array(fold.end - fold.first).fill(number));
const ORDERS = [["plan", "in order"], ["time", "by time"], ["bytes", "by bytes"]];
const NO_PAGE = { kernels: "its kernels could not be drawn", join: "its pieces are stored in place" };
const HEADS = { steps: ["step", "time", "share", "bytes"], arrays: ["array", "bytes", "decided by", "if fused"] };
const state = { row: null, fold: null, arrays: null, open: new Set(), order: "plan", filter: "", view: "steps", kernel: null };

const table = new TableView(byId("table"), byId("grid"), { choose: (at, reader) => chooseItem(at, reader), toggle: (at) => toggle(table.items[at].fold), enter: () => enter() });
const flow = new FlowView(byId("scroll"), byId("steps-graph"), {
  chooseRow: (row) => choose({ row }, true), chooseFold: (fold) => { toggle(fold); choose({ fold }); }, chooseArrays: (arrays) => choose({ arrays }, true),
});
const actions = { chooseRow: (row) => choose({ row }, true), open: (row, moment) => openKernel(row, moment), name: (row) => (row === null ? "an input" : titled(data.rows[row])), fold: (row) => folds[foldOf[row]] };

// -------------------------------------------------------------------- what is shown

const matches = (row, at, wanted) => [row.name, row.by, ...row.lines, ...(row.kernels || []), ...(row.modules || []), ...Object.values(row.operators || {}), folds[foldOf[at]].title].some((text) => text.toLowerCase().includes(wanted));

function items() {
  const wanted = state.filter.trim().toLowerCase();
  if (state.view === "arrays") {
    const named = (array) => !wanted || [array.name, actions.name(array.from), actions.name(array.to), array.reason, array.decided].some((text) => text.toLowerCase().includes(wanted));
    const found = data.arrays.map((array, at) => ({ array: at })).filter(({ array }) => named(data.arrays[array]));
    return state.order === "plan" ? found : found.sort((a, b) => size(b.array) - size(a.array));
  }
  const kept = new Set(data.rows.flatMap((row, at) => (!wanted || matches(row, at, wanted) ? [at] : [])));
  if (state.order !== "plan") return [...kept].sort((a, b) => weight(b) - weight(a)).map((row) => ({ row }));
  return folds.flatMap((fold, number) => {
    const own = [];
    for (let row = fold.first; row < fold.end; row += 1) if (kept.has(row)) own.push({ row });
    if (!own.length) return [];
    const inner = wanted || state.open.has(number) ? own : [];
    return [...(fold.heading ? [{ heading: fold.heading }] : []), { fold: number }, ...inner];
  });
}
const size = (array) => data.arrays[array].bytes * data.arrays[array].count;
const weight = (at) => { const row = data.rows[at]; return state.order === "time" ? row.seconds || 0 : (row.bytes_read + row.bytes_written) * row.steps.length; };

function make(item) {
  if (item.heading !== undefined) return { kind: "heading", cells: [cell("name", html("b", {}, item.heading))] };
  if (item.array !== undefined) return { kind: "array", cells: arrayCells(data.arrays[item.array], actions.name, whereOf(data.arrays[item.array])) };
  if (item.fold !== undefined) {
    const fold = folds[item.fold], open = state.open.has(item.fold) || Boolean(state.filter.trim());
    return { kind: "fold", open, cells: foldCells(fold, data.rows.slice(fold.first, fold.end), open) };
  }
  const row = data.rows[item.row], fold = folds[foldOf[item.row]];
  const flat = state.order !== "plan";
  return { kind: `step ${row.kind}`, level: flat ? 1 : 2, cells: rowCells(row, { where: flat && !fold.around ? fold.title : "" }) };
}

function whereOf(array) {
  const fold = folds[foldOf[array.from === null ? array.to : array.from]];
  return fold.around ? "" : array.made_in || fold.title;
}

const place = () => table.items.findIndex((item) => (state.arrays ? item.array !== undefined && data.arrays[item.array] === state.arrays[0] : state.row !== null ? item.row === state.row : state.fold !== null && item.fold === state.fold));

function renderTable() {
  table.draw(items(), make, -1);
  table.mark(place());
  byId("none").textContent = table.items.length ? "" : "Nothing has this name.";
  byId("heads").replaceChildren(...HEADS[state.view].map((text, at) => html("span", { role: "columnheader", class: `head-${at}` }, text)));
  byId("show-steps").setAttribute("aria-pressed", String(state.view === "steps"));
  byId("show-arrays").setAttribute("aria-pressed", String(state.view === "arrays"));
  byId("grid").setAttribute("aria-label", state.view === "steps" ? "Steps of the plan" : "Stored arrays");
}

function renderAbout() {
  const found = state.arrays ? [html("h2", {}, state.arrays.length > 1 ? "Stored arrays" : "A stored array"), ...state.arrays.map((array) => aboutArray(array, undefined, actions))]
    : state.row !== null ? aboutRow(data, state.row, actions) : state.fold !== null ? aboutFold(data, folds[state.fold], actions) : aboutModel(data, actions);
  byId("about").replaceChildren(...found);
  byId("about").scrollTop = 0;
}

// -------------------------------------------------------------------- selecting

function choose({ row = null, fold = null, arrays = null }, reveal = false) {
  Object.assign(state, { row, fold, arrays });
  if (table.items.length) byId("none").textContent = "";
  const ends = row !== null ? [row] : (arrays || []).flatMap((array) => [array.from, array.to]);
  const closed = ends.filter((at) => at !== null && !state.open.has(foldOf[at]));
  if (closed.length) {
    for (const at of closed) state.open.add(foldOf[at]);
    renderTable();
    renderFlow();
  }
  table.mark(place(), true);
  flow.mark({ row: row === null ? undefined : row, fold: fold === null ? undefined : fold, arrays }, true);
  renderAbout();
  if (reveal && byId("panels").offsetParent) openPanel("about");
  renderAddress();
}

function chooseItem(at, reader) {
  const item = table.items[at];
  if (!item || item.heading !== undefined) return;
  if (item.array !== undefined) choose({ arrays: [data.arrays[item.array]] }, reader);
  else if (item.row !== undefined) choose({ row: item.row }, reader);
  else choose({ fold: item.fold });
}

function move(by) {
  const count = table.items.length;
  let at = table.chosen < 0 ? (by > 0 ? 0 : count - 1) : table.chosen + by;
  while (at > 0 && at < count && table.items[at].heading !== undefined) at += by;
  chooseItem(Math.min(Math.max(at, 0), count - 1));
}

function toggle(fold, wanted = !state.open.has(fold)) {
  if (fold === undefined || fold === null || wanted === state.open.has(fold)) return;
  if (wanted) state.open.add(fold); else state.open.delete(fold);
  renderTable();
  renderFlow();
}

function sideways(open) {
  if (state.row !== null && !open) { const fold = foldOf[state.row]; toggle(fold, false); choose({ fold }); }
  else if (state.fold !== null) toggle(state.fold, open);
}

function renderFlow() { flow.draw(folds, data.rows, data.arrays, state.open); }

function enter() {
  if (state.fold !== null) return toggle(state.fold);
  const row = state.row === null ? null : data.rows[state.row];
  if (!row) return;
  if (row.program !== undefined) return openKernel(state.row, row.runs);
  byId("none").textContent = `${titled(row)} has no kernel page: ${NO_PAGE[row.kind] || "PyTorch runs it"}.`;
}

function show(changes) {
  Object.assign(state, changes);
  byId("order").value = state.order;
  byId("table").scrollTop = 0;
  renderTable();
  table.mark(place(), true);
}

// -------------------------------------------------------------------- the page of a kernel

function openKernel(at, moment) {
  const row = data.rows[at];
  if (row.program === undefined) return;
  const [before, after] = JSON.parse(byId("frame").textContent);
  const frame = html("iframe", { title: `Kernel ${titled(row)}`, name: moment, sandbox: "allow-scripts" });
  frame.addEventListener("load", () => frame.focus()); // so that its keys work
  frame.srcdoc = before + byId(`program-${row.program}`).textContent + after;
  byId("kernel-page").replaceChildren(frame);
  byId("kernel-title").textContent = `${titled(row)}: ${row.by}`;
  byId("kernel-moments").replaceChildren(...row.doors.map(([text, id]) => button(text, () => openKernel(at, id))));
  byId("kernel").hidden = false;
  state.kernel = { at, moment };
  renderDoors();
  if (state.row !== at) choose({ row: at });
  renderAddress();
}

// The door of a moment is pressed; all other steps are behind the second one.
function renderDoors() {
  const { at, moment } = state.kernel, own = data.rows[at].doors.map(([, id]) => id).lastIndexOf(moment);
  const open = own < 0 && moment.startsWith("step-") ? 1 : own;
  [...byId("kernel-moments").children].forEach((door, number) => door.setAttribute("aria-pressed", String(number === open)));
}

function closeKernel() {
  if (!state.kernel) return;
  state.kernel = null;
  byId("kernel").hidden = true;
  byId("kernel-page").replaceChildren();
  renderAddress();
  byId("grid").focus();
}

// -------------------------------------------------------------------- the address

const idOf = (at) => `${data.rows[at].section ? `table-${data.rows[at].section + 1}-` : ""}step-${data.rows[at].steps[0]}`;

function renderAddress() {
  const where = state.row !== null ? `#${idOf(state.row)}${state.kernel ? `/${state.kernel.moment}` : ""}` : "#";
  try { history.replaceState(null, "", where); } catch { /* a page in a notebook has no address */ }
}

function follow() {
  const found = location.hash.match(/^#(?:table-(\d+)-)?step-(\d+)(?:\/([\w-]+))?$/);
  if (!found) return;
  const [, number, step, moment] = found;
  const at = data.rows.findIndex((row) => row.section === (number ? number - 1 : 0) && row.steps.includes(Number(step)));
  if (at < 0) return;
  if (moment && data.rows[at].program !== undefined) return openKernel(at, moment);
  closeKernel();
  choose({ row: at }, true);
}

// -------------------------------------------------------------------- the parts that stay

function openPanel(name) {
  document.body.setAttribute("data-panel", name);
  for (const each of byId("panels").children) each.setAttribute("aria-pressed", String(each.dataset.panel === name));
  renderTable();
  flow.fill();
}

function build() {
  byId("title").textContent = data.title;
  const captured = data.sections.map((each) => each.captured).find(Boolean);
  byId("subtitle").textContent = `${data.target} (${data.machine}): ${[captured, data.summary[0]].filter(Boolean).join("; ")}`;
  byId("proof").textContent = [...new Set(data.sections.map((each) => (each.title ? `${each.title}: ${each.proof}` : each.proof)).filter(Boolean))].join("; ");
  byId("proof").title = byId("proof").textContent;
  byId("answers").replaceChildren(...data.answers.map((found) => answer(data, found, actions)));
  byId("answers").hidden = !data.answers.length;
  byId("order").append(...ORDERS.map(([value, text]) => html("option", { value }, text)));
  const largest = folds.reduce((best, fold, at) => (fold.share > (best < 0 ? -1 : folds[best].share) ? at : best), -1);
  state.open = new Set(data.rows.length <= 12 ? folds.keys() : largest < 0 ? [] : [largest]);
}

function listen() {
  const on = (id, event, action) => byId(id).addEventListener(event, action);
  on("help", "click", help);
  on("show-steps", "click", () => show({ view: "steps", order: "plan" }));
  on("show-arrays", "click", () => show({ view: "arrays", order: "bytes" }));
  on("filter", "input", () => show({ filter: byId("filter").value }));
  on("order", "change", () => show({ order: byId("order").value }));
  on("return", "click", closeKernel);
  byId("panels").addEventListener("click", (event) => event.target.dataset.panel && openPanel(event.target.dataset.panel));
  window.addEventListener("hashchange", follow);
  window.addEventListener("resize", () => { table.fill(); flow.fill(); });
  window.addEventListener("message", (event) => {
    const frame = byId("kernel-page").firstChild;
    if (!state.kernel || !frame || event.source !== frame.contentWindow) return;
    if (event.data.leave) return closeKernel();
    if (typeof event.data.moment !== "string") return;
    state.kernel.moment = event.data.moment;
    renderDoors();
    renderAddress();
  });
  document.addEventListener("keydown", keys);
}

function costliest() {
  if (!data.answers.length) return;
  if (state.view === "arrays") byId("show-steps").click();
  choose({ row: data.answers[0].row }, true);
}

function keys(event) {
  if (byId("dialog").open || event.ctrlKey || event.metaKey || event.altKey) return;
  const typed = event.target instanceof HTMLElement ? event.target.tagName : "";
  if (state.kernel) return event.key === "Escape" ? closeKernel() : undefined;
  if (typed === "INPUT") {
    if (event.key === "Escape") { byId("filter").value = ""; show({ filter: "" }); byId("grid").focus(); }
    if (event.key === "Enter" || event.key === "ArrowDown") { event.preventDefault(); byId("grid").focus(); move(1); }
    return;
  }
  if (typed === "SELECT" || (event.key === "Enter" && ["BUTTON", "SUMMARY", "A"].includes(typed))) return;
  const known = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), ArrowRight: () => sideways(true), ArrowLeft: () => sideways(false),
    Home: () => chooseItem(0), End: () => chooseItem(table.items.length - 1), Enter: enter,
    "/": () => byId("filter").focus(), t: () => show({ view: "steps", order: state.order === "time" ? "plan" : "time" }),
    a: () => byId(state.view === "arrays" ? "show-steps" : "show-arrays").click(), c: costliest,
    "?": help, Escape: () => choose({}),
  };
  if (!known[event.key]) return;
  event.preventDefault();
  known[event.key]();
}

build();
listen();
renderTable();
renderFlow();
renderAbout();
follow();
