// The listing, or a loop nest or source text: its lines and names refer to cells of the graph.
// Of a long text only the lines in the window are in the page.
const WORDS = new Set(["forall", "for", "in", "range", "load", "store", "def", "return", "if", "const", "int64_t", "float", "int", "grid", "kernel"]);
const LONG = 1200, LINE = 19;

class ListingView {
  constructor(list, select) {
    this.list = list;
    this.lines = [];
    this.marks = { key: null, names: new Set() };
    this.current = -1;
    list.addEventListener("click", (event) => {
      const item = event.target.closest("li[data-at]");
      if (!item) return;
      this.current = Number(item.getAttribute("data-at"));
      const name = event.target.getAttribute("data-name");
      select(name ? this.makers[name] : this.lines[this.current][1], name);
    });
    list.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      this.current = Math.min(Math.max(this.current + by, 0), this.lines.length - 1);
      select(this.lines[this.current][1], null);
      this.reveal(this.current);
    });
    list.addEventListener("scroll", () => this.isLong && this.fill());
  }

  get isLong() { return this.lines.length > LONG; }

  // `lines` are pairs of a text and the key of a cell; names have a meaning from line `first` on.
  draw(lines, makers, { made = [], gone = [], arrays = {}, first = 0, language = "" } = {}) {
    Object.assign(this, { lines, makers, arrays, first, current: -1, made: new Set(made), gone: new Set(gone), comments: commentsOf(lines, language) });
    this.items = new Map();
    this.list.scrollTop = 0;
    this.fill();
    this.open([...made, ...gone].sort((a, b) => a - b));
  }

  // Scrolls to the first of some lines, unless all of them are in the window.
  open(changed) {
    if (!changed.length || (changed[changed.length - 1] + 2) * LINE < this.list.clientHeight) return;
    this.list.scrollTop = Math.max(0, changed[0] - 1) * LINE;
    if (this.isLong) this.fill();
  }

  fill() {
    const count = this.lines.length, margin = 30;
    const first = this.isLong ? Math.max(0, Math.floor(this.list.scrollTop / LINE) - margin) : 0;
    const last = this.isLong ? Math.min(count, first + Math.ceil(this.list.clientHeight / LINE) + 2 * margin) : count;
    const items = new Map(); // a line that stays in the window keeps its element, so that it can be clicked
    for (let at = first; at < last; at += 1) items.set(at, this.items.get(at) || this.item(at));
    this.items = items;
    for (const item of [...this.list.children]) if (items.get(Number(item.getAttribute("data-at"))) !== item) item.remove();
    let place = this.list.firstChild;
    for (const item of items.values()) {
      if (item === place) place = place.nextSibling;
      else this.list.insertBefore(item, place);
    }
    for (const [at, item] of items) { // margins stand for the lines that are not in the page
      item.style.marginTop = at === first ? `${first * LINE}px` : "";
      item.style.marginBottom = at === last - 1 ? `${(count - last) * LINE}px` : "";
    }
    this.restyle();
  }

  item(at) {
    const said = this.made.has(at) ? "new" : this.gone.has(at) ? "gone" : null;
    const title = { new: "new line", gone: "line that is replaced" }[said];
    return html("li", { class: said, title, "data-at": at, "data-line": at + 1 }, ...this.words(this.lines[at][0], at >= this.first, this.comments[at] || []));
  }

  // The words of a line; in `comments`, pairs of places, words have no meaning.
  words(text, named, comments) {
    const parts = [];
    let last = 0;
    for (const match of text.matchAll(/[A-Za-z_][A-Za-z0-9_]*/g)) {
      if (comments.some(([from, to]) => match.index >= from && match.index < to)) continue;
      const word = match[0], name = word.replace(/_(ptr|stride_\w+)$/, ""); // Triton has these of an array
      const known = named && Object.hasOwn(this.makers, name);
      if (!known && !WORDS.has(word)) continue;
      parts.push(text.slice(last, match.index));
      if (known) {
        const kind = Object.hasOwn(this.arrays, name) ? this.arrays[name] : null;
        parts.push(html("b", { class: kind, "data-name": name }, word));
      } else parts.push(html("b", { class: "word" }, word));
      last = match.index + word.length;
    }
    return [...parts, text.slice(last) || " "];
  }

  reveal(at) {
    const item = this.list.querySelector(`li[data-at="${at}"]`);
    if (item && !this.isLong) item.scrollIntoView({ block: "nearest", inline: "nearest" });
    else {
      const top = at * LINE, { scrollTop, clientHeight } = this.list;
      if (top < scrollTop || top > scrollTop + clientHeight - 2 * LINE) this.list.scrollTop = top - clientHeight / 3;
    }
  }

  mark(key, names, reveal) {
    this.marks = { key, names };
    this.restyle();
    if (!reveal) return;
    let first = key === null ? -1 : this.lines.findIndex(([, own]) => own === key);
    if (first < 0 && names.size) {
      const word = this.list.querySelector(".picked");
      first = word ? Number(word.closest("li").getAttribute("data-at")) : -1;
    }
    if (first >= 0) this.reveal(first);
  }

  restyle() {
    const { key, names } = this.marks;
    for (const item of this.list.children) {
      const own = this.lines[Number(item.getAttribute("data-at"))][1];
      item.classList.toggle("selected-line", key !== null && own === key);
    }
    for (const word of this.list.querySelectorAll("[data-name]")) word.classList.toggle("picked", names.has(word.getAttribute("data-name")));
  }
}

// The comments in each line of a source, as pairs of places.
function commentsOf(lines, language) {
  const marks = { C: /"(?:\\.|[^"\\])*"|\/\/.*|\/\*/g, Triton: /"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|#.*/g }[language];
  let open = false; // true inside /* … */
  return marks === undefined ? [] : lines.map(([text]) => {
    const found = [];
    let at = 0;
    while (at < text.length) {
      if (!open) {
        marks.lastIndex = at;
        const match = marks.exec(text);
        if (!match) break;
        at = match.index + match[0].length;
        if (match[0] === "/*") { open = true; at = match.index; } else if (!/^["']/.test(match[0])) found.push([match.index, at]);
      } else {
        const end = text.indexOf("*/", at), until = end < 0 ? text.length : end + 2;
        found.push([at, until]);
        open = end < 0;
        at = until;
      }
    }
    return found;
  });
}
