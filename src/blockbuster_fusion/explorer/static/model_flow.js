// The graph of the steps: boxes in the order of the plan, so that a box stays where it is; arrays
// between neighbours are arrows, all others go by lanes at the side. Only what is in the window is drawn.
const BOX = { w: 206, h: 40, gap: 30, pad: 10, lane: 16, arrow: 142 };

class FlowView {
  constructor(scroll, canvas, { chooseRow, chooseFold, chooseArrays }) {
    Object.assign(this, { scroll, canvas, boxes: [], edges: [], marks: {} });
    scroll.addEventListener("scroll", () => this.wait());
    canvas.addEventListener("click", (event) => {
      const hit = event.target.closest("[data-row], [data-fold], [data-edge]");
      if (!hit) return;
      if (hit.dataset.row !== undefined) chooseRow(Number(hit.dataset.row));
      else if (hit.dataset.fold !== undefined) chooseFold(Number(hit.dataset.fold));
      else chooseArrays(this.edges[Number(hit.dataset.edge)].arrays);
    });
  }

  wait() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.fill(); });
  }

  // Places the boxes: a closed fold is one of them.
  draw(folds, rows, arrays, open) {
    const boxes = [], frames = [], at = new Map();
    let y = 14;
    folds.forEach((fold, number) => {
      if (fold.heading) { boxes.push({ heading: fold.heading, y, h: 18 }); y += 30; }
      if (!open.has(number)) {
        boxes.push({ fold: number, y, h: BOX.h });
        for (let row = fold.first; row < fold.end; row += 1) at.set(row, boxes.length - 1);
        y += BOX.h + BOX.gap;
        return;
      }
      const top = y;
      y += 24;
      for (let row = fold.first; row < fold.end; row += 1) {
        boxes.push({ row, y, h: BOX.h });
        at.set(row, boxes.length - 1);
        y += BOX.h + BOX.gap;
      }
      frames.push({ fold: number, y: top, h: y - top - BOX.gap + BOX.pad });
      y += BOX.pad + 6;
    });
    Object.assign(this, { folds, rows, boxes, frames, at });
    this.edges = this.joined(arrays);
    this.size = [this.width, y + 4];
    this.canvas.setAttribute("width", this.size[0]);
    this.canvas.setAttribute("height", this.size[1]);
    this.fill();
  }

  // Arrays between the same two boxes are one edge; neighbours have a straight one.
  joined(arrays) {
    const found = new Map();
    for (const array of arrays) {
      const from = this.at.get(array.from), to = this.at.get(array.to);
      if (from === undefined || to === undefined || (from === to && !array.crosses)) continue;
      const key = `${from} ${to} ${array.crosses}`;
      if (!found.has(key)) found.set(key, { from, to, next: array.crosses, arrays: [], bytes: 0, forced: true });
      const edge = found.get(key);
      edge.arrays.push(array);
      edge.bytes += array.bytes;
      edge.forced = edge.forced && array.decided !== "cost";
    }
    const edges = [...found.values()];
    const straight = (edge) => edge.to === edge.from + 1 && !edge.next;
    const bundles = new Map(); // what one box stores for several others goes by one lane
    for (const edge of edges.filter((each) => !straight(each))) {
      edge.side = edge.next || edge.to <= edge.from ? "left" : "right";
      const key = `${edge.from} ${edge.side} ${edge.forced}`;
      bundles.set(key, [...(bundles.get(key) || []), edge]);
    }
    const reach = (bundle) => {
      const ends = bundle.flatMap((edge) => [edge.from, edge.to]);
      return [Math.min(...ends), Math.max(...ends)];
    };
    const lanes = { left: [], right: [] }, length = (bundle) => reach(bundle)[1] - reach(bundle)[0];
    for (const bundle of [...bundles.values()].sort((one, two) => length(one) - length(two) || one[0].from - two[0].from)) {
      const [low, high] = reach(bundle), own = lanes[bundle[0].side];
      let lane = own.findIndex((taken) => taken.every(([first, last]) => last <= low || first >= high));
      if (lane < 0) lane = own.push([]) - 1;
      own[lane].push([low, high === low ? high + .5 : high]);
      const labels = new Set();
      for (const edge of bundle) {
        Object.assign(edge, { lane, unlabelled: labels.has(edge.bytes) });
        labels.add(edge.bytes);
      }
    }
    this.left = 16 + BOX.lane * lanes.left.length;
    this.width = this.left + BOX.pad + BOX.w + BOX.pad + 20 + BOX.lane * lanes.right.length;
    return edges;
  }

  get x() { return this.left + BOX.pad; }

  fill() {
    const top = this.scroll.scrollTop - 200, bottom = top + (this.scroll.clientHeight || 800) + 400;
    const seen = ({ y, h }) => y < bottom && y + h > top;
    const parts = this.frames.filter(seen).map((frame) => this.frame(frame));
    this.edges.forEach((edge, number) => {
      const ys = [this.boxes[edge.from], this.boxes[edge.to]];
      if (Math.min(ys[0].y, ys[1].y) < bottom && Math.max(ys[0].y, ys[1].y) + BOX.h > top) parts.push(this.line(edge, number));
    });
    parts.push(...this.boxes.filter(seen).map((box) => this.box(box)));
    this.canvas.replaceChildren(...parts);
  }

  frame({ fold, y, h }) {
    const own = this.folds[fold], about = own.count > 1 ? `${own.title} (${own.count} alike)` : own.title;
    return svg("g", { class: "frame", "data-fold": fold }, svg("title", {}, about),
      svg("rect", { x: this.x - BOX.pad, y, width: BOX.w + 2 * BOX.pad, height: h, rx: 8 }),
      svg("text", { x: this.x, y: y + 16 }, `▾ ${cut(own.title, 20)}`));
  }

  box(box) {
    if (box.heading) return svg("text", { class: "heading", x: this.x, y: box.y + 14 }, cut(box.heading, 34));
    const fold = box.fold === undefined ? null : this.folds[box.fold], row = fold ? null : this.rows[box.row];
    const kind = fold ? "fold" : row.kind, share = (fold || row).share;
    const picked = fold ? this.marks.fold === box.fold : this.marks.row === box.row;
    const name = fold ? `▸ ${fold.title}` : titled(row);
    const time = fold ? (fold.seconds ? duration(fold.seconds) : "") : row.time ? `${duration(row.time.seconds)}${row.steps.length > 1 ? ` × ${row.steps.length}` : ""}` : "";
    const below = [time, percent(share)].filter(Boolean).join(" · ");
    const shape = { x: this.x, y: box.y, width: BOX.w, height: box.h, rx: 6 };
    const stack = fold && fold.count > 1 ? [8, 4].map((by) => svg("rect", { ...shape, x: shape.x + by, y: shape.y + by, class: "under" })) : [];
    const filled = svg("rect", { x: this.x, y: box.y + box.h - 5, width: Math.max(1, BOX.w * (share || 0)), height: 5, class: "amount" });
    return svg("g", { class: `step ${kind} ${picked ? "picked" : ""}`, ...(fold ? { "data-fold": box.fold } : { "data-row": box.row }) },
      svg("title", {}, `${fold ? fold.title : titled(row)}: ${below}`), ...stack, svg("rect", { ...shape, class: "body" }), filled,
      fold ? null : svg("rect", { x: this.x, y: box.y, width: 5, height: box.h, class: "edge-mark" }),
      svg("text", { x: this.x + 12, y: box.y + 16 }, cut(name, 28)),
      svg("text", { x: this.x + 12, y: box.y + 30, class: "below" }, below));
  }

  line(edge, number) {
    const from = this.boxes[edge.from], to = this.boxes[edge.to], middle = this.x + BOX.arrow, right = this.x + BOX.w;
    const arrays = this.marks.arrays || [], near = (box) => (box.row !== undefined ? this.marks.row === box.row : this.marks.fold === box.fold);
    const picked = arrays.some((array) => edge.arrays.includes(array)) || near(from) || near(to);
    const label = `${amount(edge.bytes)}${edge.next ? " to the next layer" : ""}`;
    let path, text;
    if (!edge.side) {
      path = `M${middle} ${from.y + from.h}V${to.y - 5}`;
      text = { x: middle + 8, y: (from.y + from.h + to.y) / 2 + 4 };
    } else {
      const out = edge.side === "right" ? right : this.x, lane = edge.side === "right" ? right + BOX.pad + 12 + BOX.lane * edge.lane : this.left - 6 - BOX.lane * edge.lane;
      const start = edge.from === edge.to ? from.y + from.h - 8 : from.y + from.h - 12, end = edge.from === edge.to ? to.y + 8 : to.y + 12, into = edge.side === "right" ? out + 5 : out - 5;
      const half = (start + end) / 2, turn = edge.side === "right" ? 90 : -90;
      path = `M${out} ${start}H${lane}V${end}H${into}`;
      text = Math.abs(end - start) > 60 && !edge.unlabelled ? { x: lane, y: half, transform: `rotate(${turn} ${lane} ${half})`, "text-anchor": "middle", dy: -4 } : null;
    }
    return svg("g", { class: `way ${edge.forced ? "forced" : ""} ${picked ? "picked" : ""}`, "data-edge": number },
      svg("title", {}, `${edge.arrays.map((array) => array.name).join(", ")}: ${label}\n${edge.arrays[0].reason}`),
      svg("path", { d: path, class: "wide" }), svg("path", { d: path, class: "line" }), this.head(edge, to, middle, right),
      text ? svg("text", text, text.transform ? amount(edge.bytes) : label) : null);
  }

  head(edge, to, middle, right) {
    const y = edge.from === edge.to ? to.y + 8 : to.y + 12;
    if (!edge.side) return svg("path", { class: "head", d: `M${middle - 4} ${to.y - 7}L${middle} ${to.y}L${middle + 4} ${to.y - 7}Z` });
    if (edge.side === "right") return svg("path", { class: "head", d: `M${right + 7} ${y - 4}L${right} ${y}L${right + 7} ${y + 4}Z` });
    return svg("path", { class: "head", d: `M${this.x - 7} ${y - 4}L${this.x} ${y}L${this.x - 7} ${y + 4}Z` });
  }

  mark(marks, reveal) {
    this.marks = marks;
    const row = marks.arrays ? marks.arrays[0].from ?? marks.arrays[0].to : marks.row;
    const box = this.boxes[row !== undefined ? this.at.get(row) : this.boxes.findIndex((each) => each.fold !== undefined && each.fold === marks.fold)];
    if (reveal && box) {
      const { scrollTop, clientHeight } = this.scroll;
      if (clientHeight && (box.y < scrollTop + 20 || box.y + box.h > scrollTop + clientHeight - 20)) this.scroll.scrollTop = box.y - clientHeight / 3;
    }
    this.fill();
  }
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
