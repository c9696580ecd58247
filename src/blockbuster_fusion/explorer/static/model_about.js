// The words about what is selected: a row, a fold, or an array.
const section = (title, ...children) => html("section", {}, html("h3", {}, title), ...children);
const list = (...items) => html("ul", {}, ...items.map((item) => html("li", {}, item)));

function button(text, action, attributes = {}) {
  const made = html("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", action);
  return made;
}

function link(text, action) {
  return button(text, action, { class: "link" });
}

function aboutRow(data, at, actions) {
  const row = data.rows[at], fold = actions.fold(at), count = row.steps.length;
  const where = fold.around ? "" : ` in ${fold.title}`;
  const parts = [html("h2", {}, titled(row), html("span", { class: `badge ${row.kind}` }, row.by)), html("p", { class: "soft" }, `Step ${steps(row.steps)}${where}${(row.modules || []).length > 1 ? `: ${row.modules.join(", ")}` : ""}`)];
  if (row.time) {
    const all = count > 1 ? `${count} × ${timed(row.time)}, ${duration(row.seconds)} in all` : timed(row.time);
    parts.push(html("p", { class: "figure" }, all, html("em", {}, `${percent(row.share)} of the whole`)), bar(row.share, row.kind));
    const alike = equalSteps(data, row, actions);
    if (alike) parts.push(html("p", { class: "soft alike" }, alike));
    if (row.predicted) parts.push(html("p", { class: "soft" }, `${duration(row.predicted)} were predicted.`));
  } else parts.push(html("p", { class: "soft" }, "Its time is not known."));
  parts.push(html("p", {}, traffic(row)));
  if (row.program !== null && row.program !== undefined) {
    parts.push(html("p", { class: "doors" }, ...row.doors.map(([text, moment]) => button(text, () => actions.open(at, moment)))));
  }
  parts.push(aboutRival(data, row), aboutArrays(data, at, actions));
  if (row.lines.length) {
    parts.push(section("Lines of the model", html("dl", { class: "lines" }, ...row.lines.flatMap((line) => [html("dt", {}, line), html("dd", {}, html("code", {}, data.lines[line] || ""))]))));
  }
  const operators = Object.entries(row.operators || {});
  if (operators.length) parts.push(section(operators.length > 1 ? `${operators.length} operators` : "Operator", html("dl", { class: "operators" }, ...operators.flatMap(([name, operator]) => [html("dt", {}, name), html("dd", {}, operator)]))));
  if (row.launches && row.launches.length) {
    parts.push(section(row.launches.length > 1 ? `${row.launches.length} kernels` : "Kernel", html("dl", {}, ...row.launches.flatMap((launch) => [html("dt", {}, launch.name), html("dd", {}, `${moves(launch)}.`)])),
      row.config ? html("p", { class: "soft" }, `Configuration: ${row.config}`) : null));
  }
  return parts.filter(Boolean);
}

// The sum of a row and of its equals in other layers: the answers above have that sum.
function equalSteps(data, row, actions) {
  const own = data.rows.map((each, at) => [each, at]).filter(([each]) => each.digest === row.digest && each.section === row.section && each.seconds);
  if (own.length < 2) return "";
  const others = own.filter(([each]) => each !== row).map(([, at]) => actions.fold(at).title);
  const sum = (of) => own.reduce((total, [each]) => total + (of(each) || 0), 0);
  return `The same step runs in ${others.join(", ")}: ${sum((each) => each.steps.length)} × in all, ${duration(sum((each) => each.seconds))}, ${percent(sum((each) => each.share))} of the whole.`;
}

const moves = (each) => `Reads ${amount(each.bytes_read)}, writes ${amount(each.bytes_written)}${each.flops ? `, ${amount(each.flops, "flop")}` : ""}`;

function traffic(row) {
  const words = [moves(row)];
  if (row.time && row.time.seconds) words.push(`: ${amount((row.bytes_read + row.bytes_written) / row.time.seconds, "B/s")}`, row.flops ? `, ${amount(row.flops / row.time.seconds, "flop/s")}` : "");
  return `${words.join("")}.`;
}

function steps(numbers) {
  const shown = numbers.slice(0, 12).join(", ");
  return numbers.length > 12 ? `${shown} and ${numbers.length - 12} more` : shown;
}

// The runner-up: the times of both, and why it lost.
function aboutRival(data, row) {
  const rival = row.rival;
  if (!rival) return row.reason ? section("Why PyTorch runs it", html("p", {}, row.reason)) : null;
  const most = Math.max(...[rival.kernels, rival.library].map((known) => (known ? known.seconds : 0)), 1e-12);
  const line = (name, known, kind, runs) => (known ? html("div", { class: "rival" }, html("span", {}, name, runs ? html("em", {}, "runs") : null), html("b", {}, timed(known)), bar(known.seconds / most, kind)) : null);
  const more = rival.operators && rival.operators.length > Object.keys(row.operators || {}).length ? html("p", { class: "soft" }, `Weighed together: ${rival.operators.join(", ")}.`) : null;
  return section("The runner-up, and why it lost",
    line("Kernels", rival.kernels, "kernels", rival.by === "library"), line("PyTorch", rival.library, "library", rival.by === "kernels"),
    rival.kernels || rival.library ? null : html("p", {}, rival.words), rival.reason ? html("p", {}, rival.reason) : null, rival.by === "kernels" ? margin(data) : null, more,
    rival.config ? html("p", { class: "soft" }, `Configuration of these kernels: ${rival.config}`) : null);
}

function aboutArrays(data, at, actions) {
  const near = arraysOf(data, at, actions);
  if (!near.length) return section("Why it is not fused further", html("p", {}, ALONE));
  return section("Why it is not fused further", isBounded(near) ? html("p", { class: "soft" }, data.bound) : null, ...near.map((several) => aboutArray(several[0], at, actions, several.length)));
}

const ALONE = "It reads inputs of the model alone, and no other step reads its results.";
const isBounded = (near) => near.some(([array]) => array.fused !== null && array.basis === "at least");

// The arrays that a row reads, then those that it stores; the same from several layers is one of them.
function arraysOf(data, at, actions) {
  const alike = new Map();
  for (const array of data.arrays.filter(({ from, to }) => from === at || to === at)) {
    const key = JSON.stringify([array.from === at, actions.name(array.from === at ? array.to : array.from), array.bytes, array.reason]);
    alike.set(key, [...(alike.get(key) || []), array]);
  }
  return [...alike.values()].sort(([one], [two]) => (one.from === at) - (two.from === at));
}

// What a row does with an array, or what is stored by whom for whom.
function arrayWords(array, at, actions) {
  const other = (row) => (row === null ? "" : link(actions.name(row), () => actions.chooseRow(row)));
  const what = amount(array.bytes), next = array.crosses ? " in the next layer" : "";
  if (at === undefined) return [`${what} that `, other(array.from), array.to === null ? " stores" : " stores for ", array.to === null ? "" : other(array.to), next];
  if (array.from === array.to && !array.crosses) return [`stores ${what} between its own kernels`];
  if (array.from === at) return array.to === null ? [`stores ${what}`] : [`stores ${what} for `, other(array.to), next];
  return [`reads ${what} that `, other(array.from), " stores", array.crosses ? " in the layer before" : ""];
}

const fusedTimes = (array) => (array.fused === null ? "" : `fused ${timed({ seconds: array.fused, basis: array.basis })}${array.now === null ? "" : `, now ${duration(array.now)}`}`);

function aboutArray(array, at, actions, several = 1) {
  const words = arrayWords(array, at, actions), times = fusedTimes(array);
  const layers = at === undefined || array.from === at ? array.made_in : array.read_in;
  if (several > 1) words.push(`, in ${several} places`);
  else if (layers) words.push(`, only in ${layers}`);
  const costs = times ? html("p", { class: "soft" }, times[0].toUpperCase() + times.slice(1)) : null;
  return html("div", { class: `reason by-${array.decided}` }, html("p", { class: "what" }, ...words), html("p", {}, array.reason), costs);
}

function aboutFold(data, fold, actions) {
  const rows = data.rows.slice(fold.first, fold.end).map((row, at) => [row, fold.first + at]).sort(([a], [b]) => (b.seconds || 0) - (a.seconds || 0));
  const parts = [html("h2", {}, fold.title), html("p", { class: "soft" }, fold.about || "")];
  parts.push(section("Its steps by time", html("ol", { class: "ranked" }, ...rows.map(([row, at]) => html("li", {}, link(titled(row), () => actions.chooseRow(at)),
    html("span", {}, row.time ? `${duration(row.time.seconds)} · ${percent(row.share)}` : ""), bar(row.share && fold.share ? row.share / fold.share : 0, row.kind))))));
  parts.push(...aboutAttention(data, actions, (row) => row >= fold.first && row < fold.end));
  return parts;
}

// A sentence about each attention of some rows, equal ones once: who runs it, and what it stores.
function aboutAttention(data, actions, within = () => true) {
  const alike = new Map();
  for (const { rows, text } of data.attention.filter((each) => within(each.rows[0]))) alike.set(text, [...(alike.get(text) || []), rows[0]]);
  const titles = (rows) => [...new Set(rows.map((row) => actions.fold(row)).filter((fold) => !fold.around).map((fold) => fold.title))].join(", ");
  const said = [...alike].map(([text, rows]) => html("p", {}, link(titles(rows) ? `Attention in ${titles(rows)}` : "Attention", () => actions.chooseRow(rows[0])), `: ${text}.`));
  return said.length ? [section("Attention", ...said)] : [];
}

// What is to be said when nothing is selected: the whole model.
function aboutModel(data, actions) {
  const parts = [html("h2", {}, data.title), ...data.summary.map((text) => html("p", {}, text)), ...data.breaks.map((text) => html("p", {}, `Graph break: ${text}`))];
  for (const each of data.sections) {
    const lines = [each.title ? each.totals : "", each.proof, each.captured, each.otherwise ? `otherwise: ${each.otherwise}` : ""].filter(Boolean);
    parts.push(section(each.title || "The choice of parts", ...lines.map((text) => html("p", {}, text))));
  }
  return [...parts, ...aboutAttention(data, actions), ...data.notes.map((note) => html("details", {}, html("summary", {}, note.title), list(...note.lines)))];
}

const margin = (data) => (data.margin ? html("p", { class: "soft" }, data.margin) : null);

function answer(data, found, actions) {
  const where = found.layers ? ` in ${found.layers}` : "";
  const all = arraysOf(data, found.row, actions), others = all.filter(([array]) => array.decided !== "result");
  const near = others.length ? others : all, rest = near.length - 2;
  const reason = ([array]) => html("li", {}, ...arrayWords(array, found.row, actions), `: ${[array.reason, fusedTimes(array)].filter(Boolean).join("; ")}`);
  return html("article", { class: `answer ${found.kind}` },
    html("h2", {}, found.kind === "kernels" ? "Which kernel costs most?" : "Which step costs most?"),
    html("p", {}, link(titled(data.rows[found.row]), () => actions.chooseRow(found.row)), `${where}, run by ${found.by}: `, html("b", {}, `${found.share} of the whole`), `; ${found.cost}; ${found.moves}; ${found.lines.slice(0, 2).join(", ")}`),
    html("h2", {}, "Why is it not fused further?"),
    html("ul", {}, ...(near.length ? near.slice(0, 2).map(reason) : [html("li", {}, ALONE)]), rest > 0 ? html("li", {}, link(`and ${rest} more ${rest > 1 ? "reasons" : "reason"}`, () => actions.chooseRow(found.row))) : null),
    isBounded(near) ? html("p", { class: "soft" }, data.bound) : null, found.kind === "library" ? margin(data) : null);
}
