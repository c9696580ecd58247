// The snapshots: traffic against another cost.
class PlotView {
  constructor(chart, measure, snapshots, open) {
    this.chart = chart;
    this.snapshots = snapshots;
    this.open = open;
    const machines = [...new Set(snapshots.flatMap((each) => Object.keys(each.times)))];
    this.measures = [
      ...machines.map((name) => ({ name: `time (${name.split(",")[0]})`, title: `time, ${name}`, text: time, of: (each) => each.times[name] })),
      { title: "operations", text: count, of: (each) => each.cost.flops },
      { title: "local memory", text: bytes, of: (each) => each.cost.local },
    ];
    this.measures.forEach((each, at) => measure.append(html("option", { value: at }, each.name || each.title)));
    const flops = snapshots.map((each) => each.cost.flops);
    this.at = Math.max(...flops) > 1.02 * Math.min(...flops) ? machines.length : 0; // one that tells them apart
    measure.value = String(this.at);
    measure.addEventListener("change", () => this.draw(Number(measure.value), this.current));
  }

  draw(at = this.at, current = null) {
    this.at = at;
    this.current = current;
    const { width, height } = this.chart.getBoundingClientRect();
    if (!width) return;
    const own = this.measures[at], points = this.snapshots.filter((each) => own.of(each) !== undefined);
    const edge = { left: 10, right: 14, top: 24, bottom: 22 };
    const most = { x: Math.max(...points.map((p) => p.cost.traffic)), y: Math.max(...points.map(own.of)) };
    const x = (value) => edge.left + (width - edge.left - edge.right - 20) * (value / (most.x || 1));
    const y = (value) => height - edge.bottom - (height - edge.bottom - edge.top - 12) * (value / (most.y || 1));
    const floor = height - edge.bottom;
    const parts = [
      svg("path", { class: "axis", d: `M${edge.left} ${edge.top - 8}V${floor}H${width - 4}` }),
      svg("text", { x: edge.left - 6, y: 10 }, `${own.title} ↑ ${own.text(most.y)}`),
      svg("text", { x: width - 4, y: height - 6, "text-anchor": "end" }, `traffic → ${bytes(most.x)}`),
      svg("path", { class: "way", d: points.map((p, i) => `${i ? "L" : "M"}${x(p.cost.traffic)} ${y(own.of(p))}`).join("") }),
      ...points.map((point, at) => {
        const here = [x(point.cost.traffic), y(own.of(point))];
        const crowded = points.slice(0, at).some((other) => Math.hypot(x(other.cost.traffic) - here[0], y(own.of(other)) - here[1]) < 22);
        return this.point(point, ...here, own, crowded || here[0] > width - 70);
      }),
    ];
    this.chart.replaceChildren(...parts);
  }

  point(point, x, y, own, above) {
    const shape = point.number ? "M0-6A6 6 0 1 1 0 6A6 6 0 1 1 0-6" : "M-5-5H5V5H-5Z";
    const label = point.number ? `${point.number}` : point.name;
    const said = `${point.name}: traffic ${bytes(point.cost.traffic)}, ${own.title} ${own.text(own.of(point))}, ${point.cost.edges} buffered edges`;
    const element = svg("g", { class: `point${point.number ? "" : " unfused"}${point.moment === this.current ? " current" : ""}`, transform: `translate(${x},${y})`, tabindex: 0, role: "button", "aria-label": said },
      svg("title", {}, said), svg("path", { d: shape }),
      svg("text", { x: above ? -8 : 10, y: above ? -8 : 4, "text-anchor": above ? "end" : "start" }, label));
    element.addEventListener("click", () => this.open(point.moment));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      this.open(point.moment);
    });
    return element;
  }
}

// The same figures as a table.
function snapshotRows(snapshots) {
  const machines = [...new Set(snapshots.flatMap((each) => Object.keys(each.times)))];
  const head = ["", "edges", "traffic", "operations", "local", ...machines.map((name) => `time, ${name.split(",")[0]}`)];
  const row = (each) => html("tr", {}, html("th", { scope: "row" }, html("a", { href: `#${each.moment}` }, each.name)),
    ...COSTS.map(({ name, text }) => html("td", {}, text(each.cost[name]))),
    ...machines.map((name) => html("td", {}, each.times[name] === undefined ? "–" : time(each.times[name]))));
  return [html("thead", {}, html("tr", {}, ...head.map((text) => html("th", { scope: "col" }, text)))), html("tbody", {}, ...snapshots.map(row))];
}

function sparkline(values, at) {
  const most = Math.max(...values, 1), w = 92, h = 28;
  const x = (i) => 2 + (values.length > 1 ? (i / (values.length - 1)) * w : 0);
  const y = (v) => 3 + h - (v / most) * h;
  const line = svg("path", { class: "spark", d: values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("") });
  const dot = at < 0 ? null : svg("circle", { class: "spark-dot", cx: x(at), cy: y(values[at]), r: 4 });
  return svg("svg", { "aria-hidden": "true" }, line, dot);
}
