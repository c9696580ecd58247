// The text about a moment, and about what is selected.
function costChanges(previous, moment) {
  if (!previous || !previous.cost) return [];
  return COSTS.filter(({ name, text }) => text(previous.cost[name]) !== text(moment.cost[name])) // a change that is seen
    .map(({ name, title, text }) => `${title}: ${text(previous.cost[name])} → ${text(moment.cost[name])}`);
}

// The moment whose figures a safety pass changes: the pass before it, or its snapshot.
function costedBefore(data, moment) {
  const own = data.moments.filter((each) => each.group === moment.group && each.cost), at = own.indexOf(moment);
  return at > 0 ? own[at - 1] : data.snapshots.find((each) => moment.group === `snapshot-${each.number}`);
}

// What a moment does, in a few words.
const titleOf = (moment) => (moment.short ? moment.short.replaceAll("`", "") : moment.title.replaceAll("_", " "));

// A sentence with the names of operators between backticks as code.
const coded = (text) => text.split("`").map((part, at) => (at % 2 ? html("code", {}, part) : part));

// The step that a step prepares, as a link.
function prepared(data, moment) {
  const next = moment.prepares && data.moments.find((each) => each.id === moment.prepares);
  return next ? [stepTo(next.id), ` (${titleOf(next)})`] : ["others"];
}

// The operators of a program that may overflow as it is written, and the moments that make snapshots safe.
function aboutSafety({ may, moments }) {
  const alike = new Map(); // what several snapshots get is told once
  for (const [id, text] of moments) {
    const [snapshot, effect] = text.replaceAll("`", "").split(/: (.*)/);
    alike.set(effect, [...(alike.get(effect) || []), html("a", { href: `#${id}` }, snapshot)]);
  }
  const rows = [...alike].map(([effect, links]) => html("li", {}, `${effect}: `, ...links.flatMap((link, at) => (at ? [", ", link] : [link]))));
  return [html("p", {}, ...coded(`${may ? `${may} ` : ""}Each snapshot is made safe after fusion:`)), html("ul", {}, ...rows)];
}

function aboutMoment(data, moment, previous, selectArray) {
  const rule = moment.rule, parts = [];
  const snapshot = data.snapshots.find((each) => each.moment === moment.id && each.number);
  const badge = snapshot ? html("span", { class: "badge" }, snapshot.name) : null;
  if (rule) {
    const index = moment.id.replace("step-", "");
    const number = `${ruleName(rule.number)}: `;
    const dim = rule.dim ? ` along ${rule.dim}` : "";
    parts.push(html("h2", {}, `Step ${index}: ${number}${rule.name.replaceAll("_", " ")}${dim}`, badge));
    if (moment.together) parts.push(html("p", { class: "soft" }, `Steps ${moment.together[0]} to ${moment.together[1]} are shown together; this is the last of them.`));
    if (moment.said.length) parts.push(html("p", { class: "said" }, ...coded(moment.said.join(" "))));
    if (rule.extends) parts.push(html("p", {}, "This is an extension: it may repeat work, so the program before it is kept as a snapshot, and the faster of the two can be used."));
    const changes = costChanges(previous, moment);
    parts.push(html("p", { class: "change" }, ...(changes.length ? [changes.join("; ")] : ["No cost changes yet: the step prepares ", ...prepared(data, moment), "."])));
    if (snapshot) parts.push(...aboutSnapshot(data, snapshot, selectArray));
    if (moment.id === data.moments.filter((each) => each.group === "fusion").at(-1).id) parts.push(...aboutWhole(data), ...aboutChoice(data));
    parts.push(html("h3", {}, "The rule"));
    if (rule.words) parts.push(html("p", { class: "soft" }, rule.words));
    parts.push(html("div", { class: "pattern", title: "the rule's pattern" }, rule.pattern));
    if (rule.doc) parts.push(html("p", { class: "soft" }, rule.doc));
    if (moment.replaced.length) {
      parts.push(html("h3", {}, "Replaced, in the names before the step"), html("ul", {}, ...moment.replaced.map((text) => html("li", {}, text))));
    }
    if (moment.became.length) {
      parts.push(html("h3", {}, "By, in the names after it"), html("ul", {}, ...moment.became.map((text) => html("li", {}, text))));
    }
  } else {
    const title = `${moment.short ? "Made safe: " : ""}${titleOf(moment)}`;
    parts.push(html("h2", {}, title, badge), html("p", { class: "soft" }, moment.about || ""));
    if (moment.note) parts.push(html("p", {}, moment.note));
    if (moment.safe) parts.push(...aboutSafety(moment.safe));
    if (moment.id === "step-0" && data.note) parts.push(html("p", {}, data.note));
    if (moment.id === "step-0") parts.push(...aboutWhole(data), ...aboutChoice(data));
    if (moment.id === "step-0" && data.program) parts.push(html("h3", {}, "The program as it was written"), html("div", { class: "pattern program" }, data.program));
  }
  if (moment.decisions && moment.decisions.length) {
    parts.push(html("h3", {}, "Decisions"), html("ul", {}, ...moment.decisions.map((text) => html("li", {}, ...coded(text)))));
  }
  if (moment.cost_note) {
    const changes = costChanges(costedBefore(data, moment), moment);
    if (changes.length) parts.push(html("p", { class: "change" }, changes.join("; ")), html("p", {}, moment.cost_note));
  }
  if (snapshot && !rule) parts.push(...aboutSnapshot(data, snapshot, selectArray));
  return parts;
}

function aboutSnapshot(data, snapshot, selectArray) {
  const targets = Object.entries(data.chosen).filter(([, number]) => number === snapshot.number).map(([name]) => name);
  const parts = [...aboutSafe(data, snapshot), html("h3", {}, `${snapshot.name[0].toUpperCase()}${snapshot.name.slice(1)}: what is left`), html("ul", {}, ...snapshot.said.map((text) => html("li", {}, text)))];
  if (targets.length) parts.push(html("p", {}, `It runs by default in ${targets.join(" and ")}. ${data.chosen_why[0]}`));
  if (snapshot.reasons.length) {
    const many = snapshot.reasons.length > 1;
    parts.push(html("h3", {}, `Left in global memory: ${snapshot.reasons.length} ${many ? "edges" : "edge"}, and why`));
    parts.push(...snapshot.reasons.map((reason) => aboutReason(reason, selectArray)));
  }
  return parts;
}

// The moments that make a snapshot safe against overflow, and its source: as links.
function aboutSafe(data, snapshot) {
  const own = data.moments.filter((each) => each.group === `snapshot-${snapshot.number}`);
  const safe = own.filter((each) => each.stage === "safety").map((each) => [each, `Made safe: ${titleOf(each)}`]);
  const source = own.filter((each) => each.language).map((each) => [each, `Source in ${each.language}`]);
  const links = [...safe, ...source].map(([each, text]) => html("li", {}, html("a", { href: `#${each.id}` }, text)));
  return links.length ? [html("h3", {}, "From here to its kernels"), html("ul", { class: "onward" }, ...links)] : [];
}

function aboutReason(reason, selectArray) {
  const title = html("button", { type: "button" }, reason.title);
  title.addEventListener("click", () => selectArray(reason.array));
  const lines = [
    ...reason.causes.map((text) => html("p", {}, text)),
    ...reason.refusals.map((text) => html("p", { class: "soft" }, `refused: ${text}`)),
    reason.remedy ? html("p", { class: "remedy" }, `remedy: ${reason.remedy}`) : null,
  ];
  return html("div", { class: "reason" }, title, ...lines);
}

function aboutCell(frame, box, reason) {
  const near = frame.edges.filter((edge) => edge.ends.includes(box.key));
  const kinds = { array: "list in global memory", input: "input", output: "output", map: "map", load: "load", store: "store", accumulate: "accumulator", port: "operand" };
  const parts = [html("p", {}, html("code", {}, box.text || (box.names || []).join(", ")), ` (${kinds[box.kind] || box.kind})`)];
  const makes = (text) => text.split(/ [+*]?= /)[0].split(",").includes(box.names[0]);
  const line = box.kind === "accumulate" ? frame.lines.map(([text]) => text.trim()).find(makes) : null;
  if (line) parts.push(html("p", {}, html("code", {}, line)));
  if (box.type) parts.push(html("p", { class: "soft" }, box.type));
  if (box.moved) parts.push(html("p", {}, `stored ${bytes(box.moved[1])}, loaded ${bytes(box.moved[0])}`));
  if (box.kind === "array") {
    const readers = near.filter((edge) => edge.ends[0] === box.key).length;
    parts.push(html("p", { class: "soft" }, readers === 1 ? "one reader" : `${readers} readers`));
    parts.push(reason || html("p", { class: "soft" }, "Later steps may remove it; snapshots give the reason for what is left."));
  }
  return html("div", { class: "selected" }, ...parts);
}
