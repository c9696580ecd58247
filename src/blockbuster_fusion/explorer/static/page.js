// The page: moments in order, one of them shown; everything else follows from it.
const data = JSON.parse(byId("data").textContent);
const moments = data.moments;
const fusion = moments.filter((moment) => moment.group === "fusion");
const state = { at: 0, before: false, key: null, name: null, playing: null, size: "" };

const graph = new GraphView(byId("canvas"), byId("world"), (key) => select(key, null));
const listing = new ListingView(byId("lines"), (key, name) => select(key || null, name));
const plot = new PlotView(byId("chart"), byId("measure"), data.snapshots, (id) => go(indexOf(id)));
const indexOf = (id) => moments.findIndex((moment) => moment.id === id);

// The longest line of a group of moments: while they are stepped through, the width stays.
const LETTER = 7.25; // pixels
const columns = new Map();
for (const { group, text, frame } of moments) {
  const lines = text === undefined ? data.frames[frame].lines.map(([line]) => line) : text.split("\n");
  columns.set(group, lines.reduce((most, line) => Math.max(most, line.length), columns.get(group) || 0));
}

function frameOf(moment) {
  const earlier = state.before && state.at > 0 && moment.rule ? moments[state.at - 1] : moment;
  return data.frames[earlier.frame];
}

// -------------------------------------------------------------------- drawing

function render({ still = false } = {}) {
  const moment = moments[state.at], frame = frameOf(moment), past = state.before && Boolean(moment.rule);
  document.body.classList.toggle("before", past);
  document.body.classList.toggle("changed", Boolean((moment.made || []).length));
  document.querySelector("main").style.setProperty("--code", `${76 + LETTER * columns.get(moment.group)}px`);
  renderCosts(past ? moments[state.at - 1] : moment); // first: it gives the graph's window its height
  graph.draw(frame, past ? { matched: moment.matched, focus: moment.focus, still } : { made: moment.made || [], focus: moment.focus, still });
  const arrays = {};
  for (const box of frame.boxes) {
    for (const name of box.kind === "array" ? box.names : []) arrays[name] = "interior";
    for (const name of ["input", "output"].includes(box.kind) ? box.names : []) arrays[name] = "border";
  }
  if (moment.text !== undefined) {
    const lines = moment.text.replace(/\n$/, "").split("\n").map((text) => [text, ""]);
    listing.draw(lines, frame.makers, { arrays, first: moment.line || 0, language: moment.language });
    if (moment.line) byId("lines").scrollTop = moment.line * LINE;
    byId("code-title").textContent = moment.language ? `Source in ${moment.language}` : "Loop nest";
  } else {
    listing.draw(frame.lines, frame.makers, past ? { gone: moment.gone, arrays } : { made: moment.new || [], arrays });
    byId("code-title").textContent = past ? "Listing before the step" : "Listing";
  }
  byId("panels").children[1].textContent = moment.text === undefined ? "Listing" : moment.language ? "Source" : "Nest";
  byId("before").hidden = !moment.rule;
  byId("before").setAttribute("aria-pressed", String(past));
  byId("canvas").setAttribute("aria-label", `Graph of the block program, ${frame.boxes.length} cells: ${titleOf(moment)}`);
  renderPlace(moment);
  plot.draw(plot.at, moment.id);
  if (state.key !== null && !frame.boxes.some((box) => box.key === state.key)) Object.assign(state, { key: null, name: null });
  renderSelection(false);
  try { history.replaceState(null, "", `#${moment.id}`); } catch { /* a page in a notebook has no address */ }
  if (window.parent !== window) window.parent.postMessage({ moment: moment.id }, "*"); // the page of a model has it in its address
}

function renderCosts(moment) {
  const at = fusion.indexOf(moment), cost = moment.cost || costBefore(state.at), first = fusion[0].cost;
  byId("costs").replaceChildren(...COSTS.map(({ name, title, text }) => {
    const ratio = first[name] ? cost[name] / first[name] : 1;
    const change = name === "edges" ? `of ${first.edges}` : `${multiple(ratio)}× unfused`;
    return html("div", { class: "cost", "data-cost": name }, html("b", {}, title),
      html("span", {}, text(cost[name]), html("em", {}, change)), sparkline(fusion.map((each) => each.cost[name]), at));
  }));
}
// A ratio of two digits; near 1 of two decimals, so that only equal costs read as 1.
const multiple = (ratio) => (ratio !== 1 && ratio > .5 && ratio < 2 ? ratio.toFixed(2) : String(Number(ratio.toPrecision(2))));
const costBefore = (at) => { while (!moments[at].cost) at -= 1; return moments[at].cost; };

function renderPlace(moment) {
  for (const link of byId("steps").querySelectorAll("a")) {
    const here = link.getAttribute("href") === `#${moment.id}`;
    if (here) {
      link.setAttribute("aria-current", "step");
      link.closest("details").open = true;
      if (link.offsetParent) link.scrollIntoView({ block: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  byId("slider").value = String(state.at);
  byId("slider").setAttribute("aria-valuetext", titleOf(moment));
  byId("where").textContent = `${numberOf(moment)} / ${numberOf(moments[moments.length - 1])}`;
  byId("back").disabled = byId("first").disabled = state.at === 0;
  byId("next").disabled = byId("last").disabled = state.at === moments.length - 1;
}

function renderSelection(reveal) {
  const moment = moments[state.at], frame = frameOf(moment);
  const box = frame.boxes.find((each) => each.key === state.key);
  const names = new Set(state.name ? [state.name] : box && ["array", "input", "output"].includes(box.kind) ? box.names : []);
  graph.mark(new Set(box ? [box.key] : []), names);
  listing.mark(state.name ? null : state.key, names, reveal);
  if (reveal && box) graph.reveal(box.key);
  const snapshot = data.snapshots.find((each) => each.moment === moment.id && each.number);
  const found = box && snapshot ? snapshot.reasons.find((reason) => reason.array === box.key) : null;
  const chosen = box ? aboutCell(frame, box, found ? aboutReason(found, (key) => select(key, null)) : null) : null;
  byId("about").replaceChildren(...(chosen ? [chosen] : []), ...aboutMoment(data, moment, moments[state.at - 1], (key) => select(key, null)));
  byId("about").scrollTop = 0;
}

function select(key, name) {
  Object.assign(state, { key, name });
  renderSelection(true);
}

// -------------------------------------------------------------------- moving

function go(at, options = {}) {
  if (at < 0 || at >= moments.length) return stop();
  if (moments[at].group !== moments[state.at].group) graph.free = false;
  Object.assign(state, { at, before: false });
  render(options);
}

function toggleBefore() {
  if (!moments[state.at].rule) return;
  state.before = !state.before;
  render();
}

function toggleWide() {
  byId("wide").setAttribute("aria-pressed", String(document.body.classList.toggle("wide")));
  graph.free = false;
  render({ still: true });
}

function stop() {
  if (state.playing) clearInterval(state.playing);
  state.playing = null;
  byId("play").textContent = "▶ play";
  byId("play").setAttribute("aria-label", "Play");
}

function play() {
  if (state.playing) return stop();
  if (state.at === moments.length - 1) go(0);
  state.playing = setInterval(() => (state.at === moments.length - 1 ? stop() : go(state.at + 1)), 1400);
  byId("play").textContent = "⏸ stop";
  byId("play").setAttribute("aria-label", "Stop");
}

function nextSnapshot() {
  const later = data.snapshots.map((each) => indexOf(each.moment)).filter((at) => at > state.at);
  go(later.length ? Math.min(...later) : indexOf(data.snapshots[0].moment));
}

// A frame in the page of a model is left by the key that selects nothing.
function leave() {
  if (state.key === null && window.parent !== window) window.parent.postMessage({ leave: true }, "*");
  else select(null, null);
}

function resized() {
  const size = `${innerWidth} ${innerHeight}`;
  if (size === state.size) return;
  Object.assign(state, { size });
  graph.free = false;
  render({ still: true });
}

function openPanel(name) {
  document.body.setAttribute("data-panel", name);
  for (const button of byId("panels").children) button.setAttribute("aria-pressed", String(button.dataset.panel === name));
  graph.free = false;
  render({ still: true });
}

// -------------------------------------------------------------------- the parts that stay

const FUSION_HINT = "The outermost graph first, then those in loops. Where no rule is left, a snapshot is kept; then an extension is tried.";
const KERNELS_HINT = "How it becomes kernels: made safe against overflow, then loop nests after each pass that changes them, then source.";

function buildSteps() {
  const groups = new Map();
  moments.forEach((moment) => groups.set(moment.group, [...(groups.get(moment.group) || []), moment]));
  const stages = { safety: "made safe", cpu: "for a CPU", cuda: "for a GPU" };
  for (const [group, own] of groups) {
    const title = group === "fusion" ? `Fusion, ${own[own.length - 1].id.replace("step-", "")} steps` : `${group.replace("-", " ").replace("s", "S")} → kernels`;
    const items = [html("p", { class: "hint" }, group === "fusion" ? FUSION_HINT : KERNELS_HINT)];
    let stage = null;
    for (const moment of own) {
      if (moment.stage && moment.stage !== stage) items.push(html("h3", {}, stages[stage = moment.stage]));
      items.push(stepLink(moment));
    }
    byId("steps").append(html("details", { open: group === "fusion" }, html("summary", {}, title), ...items));
  }
}

// The number of a moment in the list and beside the slider: steps of fusion first, then the others.
function numberOf(moment) {
  const step = (each) => Number(each.id.replace("step-", ""));
  return moment.group === "fusion" ? step(moment) : step(fusion[fusion.length - 1]) + 1 + moments.indexOf(moment) - fusion.length;
}

function ruleWords({ number, extends: extension, dim }) {
  const name = extension ? `${number ? `rule ${number}, ` : ""}extension` : ruleName(number);
  return `${name}${dim ? ` · ${dim}` : ""}`;
}

function stepLink(moment) {
  const badge = moment.snapshot ? html("span", { class: "badge" }, `snapshot ${moment.snapshot}`) : null;
  const [removes, adds] = [moment.removes || [], moment.adds || []].map((names) => names.join(", "));
  const mark = removes && adds ? `${removes} → ${adds}` : removes ? `− ${removes}` : adds ? `+ ${adds}` : "";
  const said = [removes ? `${removes} not stored any more` : "", adds ? `${adds} stored` : ""].filter(Boolean).join("; ");
  return html("a", { href: `#${moment.id}`, class: removes && !adds ? "key-step" : null },
    html("i", {}, numberOf(moment)), html("span", {}, titleOf(moment)),
    html("small", {}, moment.rule ? ruleWords(moment.rule) : "", mark ? html("b", { class: "removed", title: said }, mark) : null, badge));
}

function buildTexts() {
  const sizes = Object.entries(data.sizes).map(([name, size]) => `${name}=${size}`).join(", ");
  byId("title").textContent = data.title;
  const steps = fusion[fusion.length - 1].id.replace("step-", "");
  byId("note").textContent = data.note || "";
  byId("note").hidden = !data.note;
  byId("order").textContent = `The page has ${moments.length - 1} moments after the unfused program. ${steps} are steps of fusion; the other ${moments.length - fusion.length} show how each snapshot becomes kernels: it is made safe against overflow, becomes loop nests, and then source in C and Triton.`;
  const further = fusion.filter((moment) => moment.rule && !moment.rule.number).length;
  const rules = further ? `, ${fusion.length - 1 - further} of them by the paper's rules` : " by the paper's rules";
  byId("subtitle").textContent = `${steps} fusion steps${rules}; figures for ${sizes}, ${data.blocks}`;
  byId("chosen").replaceChildren(...[defaultWords(data), fastestWords(data)].filter(Boolean).map((text) => html("span", {}, text)));
  byId("rows").append(...snapshotRows(data.snapshots));
  byId("slider").max = String(moments.length - 1);
}

function listen() {
  const on = (id, event, action) => byId(id).addEventListener(event, action);
  on("first", "click", () => go(0));
  on("back", "click", () => go(state.at - 1));
  on("next", "click", () => go(state.at + 1));
  on("last", "click", () => go(moments.length - 1));
  on("play", "click", play);
  on("before", "click", toggleBefore);
  on("wide", "click", toggleWide);
  on("help", "click", help);
  on("zoom-in", "click", () => graph.zoom(1.25));
  on("zoom-out", "click", () => graph.zoom(.8));
  on("zoom-fit", "click", () => graph.fit());
  on("slider", "input", () => go(Number(byId("slider").value)));
  byId("panels").addEventListener("click", (event) => event.target.dataset.panel && openPanel(event.target.dataset.panel));
  window.addEventListener("hashchange", () => { const at = indexOf(location.hash.slice(1)); if (at >= 0 && at !== state.at) go(at); });
  new ResizeObserver(resized).observe(document.documentElement); // a frame may have no size at first
  document.addEventListener("keydown", (event) => {
    if (byId("dialog").open || event.ctrlKey || event.metaKey || event.altKey) return;
    const typed = event.target instanceof HTMLElement ? event.target.tagName : "";
    if (typed === "SELECT") return;
    const keys = {
      ArrowLeft: () => go(state.at - 1), ArrowRight: () => go(state.at + 1), Home: () => go(0), End: () => go(moments.length - 1),
      " ": play, "?": help, b: toggleBefore, w: toggleWide, n: nextSnapshot, Escape: leave,
      "+": () => graph.zoom(1.25), "=": () => graph.zoom(1.25), "-": () => graph.zoom(.8), 0: () => graph.fit(),
    };
    if (event.key === " " && ["BUTTON", "SUMMARY", "A"].includes(typed)) return; // it presses that
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

buildTexts();
buildSteps();
listen();
state.at = Math.max(0, indexOf(location.hash.slice(1) || window.name)); // a frame has a name in place of an address
if (moments[state.at].text !== undefined) openPanel("code"); // on a phone, the text that was asked for
resized();
