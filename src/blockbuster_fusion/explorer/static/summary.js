// The whole fusion on one screen: figures before and after, the fate of each stored array, and the rules.
const stepName = (id) => id.replace("-", " ");
const stepTo = (id) => html("a", { href: `#${id}` }, stepName(id));

function aboutWhole(data) {
  const { arrays, rules } = data.summary, first = data.moments[0].id;
  const head = ["array", "what it is", "gone at"];
  const row = (each) => html("tr", {}, html("th", { scope: "row" }, each.name),
    html("td", {}, html("code", {}, each.what), each.since === first ? null : html("small", {}, " since ", stepTo(each.since))),
    html("td", {}, each.gone ? stepTo(each.gone) : "stays"));
  const parts = [html("h3", {}, "Before and after"), html("table", { class: "figures" }, ...snapshotRows(data.snapshots))];
  if (arrays.length) {
    parts.push(html("h3", {}, "Stored arrays between operators, and the step that removes each"),
      html("table", { class: "fates" }, html("thead", {}, html("tr", {}, ...head.map((text) => html("th", { scope: "col" }, text)))), html("tbody", {}, ...arrays.map(row))));
  }
  if (rules.length) {
    const named = ({ name, number, count }) => html("li", {}, `${count} × ${ruleName(number)}: ${name.replaceAll("_", " ")}`);
    parts.push(html("h3", {}, "Rules that fired"), html("ul", { class: "tally" }, ...rules.map(named)));
  }
  return parts;
}

// A rule of the paper has a number.
const ruleName = (number) => (number ? `rule ${number}` : "further rule");

// Which snapshot runs if nothing is said, and which one is fastest at the sizes of the page: a sentence each.
function defaultWords(data) {
  const chosen = Object.entries(data.chosen);
  if (!chosen.length) return "";
  const numbers = [...new Set(chosen.map(([, number]) => number))];
  const which = numbers.map((number) => `snapshot ${number} in ${chosen.filter(([, own]) => own === number).map(([name]) => name).join(" and ")}`);
  return `Runs by default: ${which.join(", ")}.`;
}

function fastestWords(data) {
  const names = [...new Set(data.snapshots.flatMap((each) => Object.keys(each.times)))];
  return names.map((name) => {
    const [first] = byTime(data, name);
    return `Fastest at this page's sizes: ${first.name} (${name}, ${time(first.times[name])}).`;
  }).join(" ");
}
const byTime = (data, name) => data.snapshots.filter((each) => each.times[name] !== undefined).sort((a, b) => a.times[name] - b.times[name]);

function aboutChoice(data) {
  const sizes = Object.entries(data.sizes).map(([name, size]) => `${name}=${size}`).join(", ");
  const names = [...new Set(data.snapshots.flatMap((each) => Object.keys(each.times)))];
  const times = names.map((name) => `At this page's sizes (${sizes}), times are (${name}): ${byTime(data, name).map((each) => `${each.name} ${time(each.times[name])}`).join(", ")}.`);
  const words = [[defaultWords(data), ...(data.chosen_why || [])].filter(Boolean).join(" "), ...times].filter(Boolean);
  return words.length ? [html("h3", {}, "Which snapshot runs"), ...words.map((text) => html("p", {}, text))] : [];
}
