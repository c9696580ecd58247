// The graph: cells keep their elements from frame to frame, so that they can move to their places.
// Of a large graph only what is in the window is in the page, and it does not move.
const LARGE = 800;
const LETTERS = 34;
const READABLE = .72; // a scale

class GraphView {
  constructor(canvas, world, select) {
    this.canvas = canvas;
    this.world = world;
    this.boxes = svg("g");
    this.edges = svg("g");
    this.labels = svg("g");
    this.titles = svg("g");
    world.append(this.boxes, this.edges, this.titles, this.labels);
    this.cells = new Map();
    this.frame = null;
    this.marks = { made: new Set(), matched: new Set(), keys: new Set(), names: new Set() };
    this.view = { x: 0, y: 0, scale: 1 };
    this.free = false; // true when the reader has moved or zoomed
    this.listen(select);
  }

  draw(frame, { made = [], matched = [], focus = null, still = false } = {}) {
    const before = this.frame;
    this.large = frame.boxes.length >= LARGE;
    const moves = before !== null && !still && !this.large && before.boxes.length < LARGE;
    this.world.classList.toggle("moves", moves);
    this.marks = { ...this.marks, made: new Set(made), matched: new Set(matched) };
    if (before !== frame) {
      this.frame = frame;
      this.byKey = new Map(frame.boxes.map((box) => [box.key, box]));
      if (!this.large) this.fill(frame.boxes, frame.edges);
    }
    this.show(before, frame, [focus, ...made, ...matched].filter((key) => this.byKey.has(key)));
    if (this.large) this.fillWindow();
    this.restyle();
  }

  fill(boxes, edges) {
    const kept = new Set();
    for (const box of boxes) {
      kept.add(box.key);
      let cell = this.cells.get(box.key);
      if (cell && (cell.round !== isRound(box.kind) || Boolean(cell.above) !== (box.kind === "map"))) {
        this.drop(box.key);
        cell = null;
      }
      if (!cell) {
        cell = makeCell(box);
        this.cells.set(box.key, cell);
      }
      // Outer boxes come first, so that inner ones lie on top of them; arrays lie above edges.
      (box.kind === "map" ? this.boxes : this.labels).append(cell.element);
      updateCell(cell, box);
      if (cell.above) this.titles.append(cell.above);
    }
    for (const key of [...this.cells.keys()]) if (!kept.has(key)) this.drop(key);
    this.lines = edges.map((edge) => [edge, svg("path", { class: `edge ${edge.memory}`, d: curve(edge.points) })]);
    this.edges.replaceChildren(...this.lines.map(([, line]) => line));
  }

  drop(key) {
    const cell = this.cells.get(key);
    cell.element.remove();
    if (cell.above) cell.above.remove();
    this.cells.delete(key);
  }

  // Fills in what the window shows, without what would be smaller than a few pixels.
  fillWindow() {
    const { width, height } = this.canvas.getBoundingClientRect(), { x, y, scale } = this.view;
    const left = -x / scale - 200, top = -y / scale - 200, right = (width - x) / scale + 200, bottom = (height - y) / scale + 200;
    const seen = ([bx, by, bw, bh]) => bx < right && by < bottom && bx + bw > left && by + bh > top && bh * scale > 2;
    const near = ({ points }) => points[1] < bottom && points[points.length - 1] > top && Math.min(points[0], points[points.length - 2]) < right;
    this.fill(this.frame.boxes.filter((box) => seen(box.at)), scale < .12 ? [] : this.frame.edges.filter(near));
  }

  restyle() {
    const { made, matched, keys, names } = this.marks;
    for (const [key, cell] of this.cells) {
      cell.element.classList.toggle("made", made.has(key));
      cell.element.classList.toggle("matched", matched.has(key));
      cell.element.classList.toggle("picked", keys.has(key));
    }
    for (const [edge, line] of this.lines) {
      line.classList.toggle("picked", edge.ends.some((end) => keys.has(end)) || (edge.name !== undefined && names.has(edge.name)));
    }
  }

  // ------------------------------------------------------------------ the window

  // As much of the graph as is readable, all of its width first. What a step changed stays where it
  // is, unless the reader could not see all of it there, or its first cell if it is too large.
  show(before, frame, touched) {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width || (this.free && before === frame)) return;
    const room = { width: width - 32, height: height - 20 }, [w, h] = frame.size;
    const least = Math.min(READABLE, room.width / w);
    const scale = this.free ? this.view.scale : Math.max(Math.min(room.width / w, room.height / h, 1.15), least);
    const old = before ? touched.map((key) => before.boxes.find((box) => box.key === key)).find(Boolean) : null;
    const now = old ? this.byKey.get(old.key).at : null;
    if (this.free) {
      if (now) this.view = { x: this.view.x + (old.at[0] - now[0]) * scale, y: this.view.y + (old.at[1] - now[1]) * scale, scale };
      return this.apply();
    }
    const [top, low] = this.span(touched, (height - 40) / scale);
    const kept = now && scale === this.view.scale ? this.view.y + (old.at[1] - now[1]) * scale : NaN;
    const seen = top * scale + kept > 0 && low * scale + kept < height - 20; // false for NaN
    const y = seen ? kept : height / 2 - (top + low) / 2 * scale;
    const lowest = h * scale > room.height ? height - 12 - h * scale : Math.max(12, (height - h * scale) / 2);
    this.view = { x: (width - w * scale) / 2, y: Math.max(lowest, Math.min(12, y)), scale };
    this.apply();
  }

  // From where to where cells reach: all of them if that is no more than `most`, else the first one.
  span(keys, most) {
    if (!keys.length) return [0, 0];
    const ends = keys.map((key) => this.byKey.get(key).at).map(([, top, , tall]) => [top, top + tall]);
    const all = [Math.min(...ends.map(([top]) => top)), Math.max(...ends.map(([, low]) => low))];
    return all[1] - all[0] <= most ? all : [ends[0][0], Math.min(ends[0][1], ends[0][0] + most)];
  }

  fit() {
    this.free = false;
    const { width, height } = this.canvas.getBoundingClientRect();
    const [w, h] = this.frame.size;
    this.view.scale = Math.max(Math.min((width - 24) / w, (height - 24) / h, 1.4), .05);
    this.view.x = (width - w * this.view.scale) / 2;
    this.view.y = 12;
    this.free = true;
    this.apply();
  }

  zoom(factor, x = null, y = null) {
    const { width, height } = this.canvas.getBoundingClientRect();
    const centre = { x: x ?? width / 2, y: y ?? height / 2 };
    const scale = Math.min(Math.max(this.view.scale * factor, .02), 4);
    const ratio = scale / this.view.scale;
    this.view.x = centre.x - (centre.x - this.view.x) * ratio;
    this.view.y = centre.y - (centre.y - this.view.y) * ratio;
    this.view.scale = scale;
    this.free = true;
    this.apply();
  }

  reveal(key) {
    const box = this.byKey.get(key);
    if (!box) return;
    const { width, height } = this.canvas.getBoundingClientRect();
    const [x, y, w, h] = box.at, { scale } = this.view;
    const left = x * scale + this.view.x, top = y * scale + this.view.y;
    const inside = left > 0 && top > 0 && left + Math.min(w * scale, 200) < width && top + Math.min(h * scale, 60) < height - 30;
    if (inside || !width) return;
    this.view.x = width / 2 - (x + w / 2) * scale;
    this.view.y = height / 3 - y * scale;
    if (!this.large) this.world.classList.add("moves");
    this.apply();
  }

  apply() {
    const { x, y, scale } = this.view;
    this.world.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
    const more = this.frame !== null && y + this.frame.size[1] * scale > this.canvas.clientHeight + 4;
    this.canvas.parentElement.classList.toggle("below", more); // a shadow tells that there is more
    if (this.large && !this.waits) {
      this.waits = true;
      requestAnimationFrame(() => { this.waits = false; if (this.large) { this.fillWindow(); this.restyle(); } });
    }
  }

  listen(select) {
    const held = new Map();
    let moved = 0;
    this.canvas.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, [event.clientX, event.clientY]);
      moved = 0;
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const last = held.get(event.pointerId);
      if (!last) return;
      const now = [event.clientX, event.clientY];
      if (held.size === 2) {
        const other = [...held].find(([id]) => id !== event.pointerId)[1];
        const far = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
        const { left, top } = this.canvas.getBoundingClientRect();
        this.world.classList.remove("moves");
        this.zoom(far(now) / Math.max(far(last), 1), (now[0] + other[0]) / 2 - left, (now[1] + other[1]) / 2 - top);
        moved = 99;
      } else {
        moved += Math.abs(now[0] - last[0]) + Math.abs(now[1] - last[1]);
        if (moved > 4) {
          this.canvas.setPointerCapture(event.pointerId);
          this.canvas.classList.add("dragged");
          this.world.classList.remove("moves");
          this.view.x += now[0] - last[0];
          this.view.y += now[1] - last[1];
          this.free = true;
          this.apply();
        }
      }
      held.set(event.pointerId, now);
    });
    const release = (event) => { held.delete(event.pointerId); this.canvas.classList.remove("dragged"); };
    this.canvas.addEventListener("pointerup", release);
    this.canvas.addEventListener("pointercancel", release);
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.world.classList.remove("moves");
      const { left, top } = this.canvas.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 120), event.clientX - left, event.clientY - top);
      else {
        this.view.x -= event.deltaX;
        this.view.y -= event.deltaY;
        this.free = true;
        this.apply();
      }
    }, { passive: false });
    this.canvas.addEventListener("click", (event) => {
      if (moved > 4) return;
      const hit = event.target.closest(".cell");
      select(hit ? hit.getAttribute("data-key") : null);
    });
  }

  // ------------------------------------------------------------------ selection

  mark(keys, names) {
    this.marks = { ...this.marks, keys, names };
    this.restyle();
  }
}

const isRound = (kind) => ["port", "load", "store", "accumulate"].includes(kind);

function makeCell(box) {
  const round = isRound(box.kind);
  const title = svg("title");
  const element = svg("g", { "data-key": box.key }, title);
  const cell = { element, title, round };
  if (round) {
    element.append(svg("circle", { cx: 4, cy: 4, r: 4 }));
    element.append(svg("circle", { class: "inner", cx: 4, cy: 4, r: 1.8 })); // seen on accumulators: a result may become one
  } else {
    cell.rect = svg("rect", { rx: box.kind === "map" ? 7 : 5 });
    cell.text = svg("text");
    element.append(cell.rect);
    if (box.kind === "map") cell.above = svg("g", { class: "cell title" }, cell.text); // edges do not cross it
    else element.append(cell.text);
  }
  return cell;
}

function updateCell(cell, box) {
  const [x, y, w, h] = box.at;
  cell.box = box;
  cell.element.setAttribute("class", `cell ${box.kind} ${box.memory || ""}`);
  cell.element.style.transform = `translate(${x}px, ${y}px)`;
  cell.title.textContent = describe(box);
  if (cell.round) return;
  if (cell.above) cell.above.style.transform = `translate(${x}px, ${y}px)`;
  cell.rect.style.width = `${w}px`;
  cell.rect.style.height = `${h}px`;
  if (["array", "input", "output"].includes(box.kind)) cell.rect.setAttribute("rx", 12);
  const map = box.kind === "map";
  cell.text.setAttribute("x", map ? 9 : w / 2);
  cell.text.setAttribute("y", map ? 17 : h / 2 + 4);
  cell.text.setAttribute("text-anchor", map ? "start" : "middle");
  if (map) cell.text.textContent = box.text.replace(/ in range.*$/, ""); // the listing has the rest
  else cell.text.textContent = box.text.length > LETTERS ? `${box.text.slice(0, LETTERS - 1)}…` : box.text;
}

function describe(box) {
  const words = { load: "loads", store: "stores", accumulate: "accumulates", port: "passes" };
  const what = words[box.kind] ? `${words[box.kind]} ${(box.names || []).join(", ")}` : box.text;
  const moved = box.moved ? `\nstored ${bytes(box.moved[1])}, loaded ${bytes(box.moved[0])}` : "";
  return `${what}${box.type ? `\n${box.type}` : ""}${moved}`;
}

function curve(points) {
  let path = `M${points[0]} ${points[1]}`;
  for (let i = 2; i < points.length; i += 2) {
    const [x0, y0, x1, y1] = points.slice(i - 2, i + 2);
    const half = (y0 + y1) / 2;
    path += x0 === x1 ? `L${x1} ${y1}` : `C${x0} ${half} ${x1} ${half} ${x1} ${y1}`;
  }
  return path;
}
