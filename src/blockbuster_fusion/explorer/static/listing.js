// The listing, or a loop nest or source text: its lines and names refer to cells of the graph.
const WORDS = new Set(["forall", "for", "in", "range", "load", "store", "def", "return", "if", "const", "int64_t", "float", "int", "grid", "kernel"]);

class ListingView {
  constructor(list, select) {
    this.list = list;
    this.current = -1;
    list.addEventListener("click", (event) => {
      const item = event.target.closest("li");
      if (!item) return;
      this.current = [...list.children].indexOf(item);
      const name = event.target.getAttribute("data-name");
      select(name ? this.makers[name] : this.keys[this.current], name);
    });
    list.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      event.stopPropagation();
      this.current = Math.min(Math.max(this.current + by, 0), this.keys.length - 1);
      select(this.keys[this.current], null);
      list.children[this.current].scrollIntoView({ block: "nearest" });
    });
  }

  // `lines` are pairs of a text and the key of a cell; `names` are other names of the listing's.
  draw(lines, makers, { made = [], gone = [], names = null, arrays = {} } = {}) {
    this.keys = lines.map(([, key]) => key);
    this.makers = makers;
    this.names = names;
    this.current = -1;
    const fresh = new Set(made), old = new Set(gone);
    this.list.replaceChildren(...lines.map(([text], at) => {
      const marks = [fresh.has(at) && "new", old.has(at) && "gone"].filter(Boolean).join(" ");
      const said = fresh.has(at) ? "new line" : old.has(at) ? "line that is replaced" : null;
      return html("li", { class: marks || null, title: said }, ...this.words(text, arrays));
    }));
    this.list.scrollTop = 0;
  }

  words(text, arrays) {
    const parts = [];
    let last = 0;
    for (const match of text.matchAll(/[A-Za-z_][A-Za-z0-9_]*/g)) {
      const word = match[0];
      const name = this.names ? this.names[word] : word;
      const known = name !== undefined && Object.hasOwn(this.makers, name);
      if (!known && !WORDS.has(word)) continue;
      parts.push(text.slice(last, match.index));
      if (known) {
        const other = this.names && name !== word ? `${name} in the block program` : null;
        parts.push(html("b", { class: [arrays[name], other && "same"].filter(Boolean).join(" ") || null, "data-name": name, title: other }, word));
      } else parts.push(html("b", { class: "word" }, word));
      last = match.index + word.length;
    }
    return [...parts, text.slice(last) || " "];
  }

  mark(key, names, reveal) {
    let first = null;
    [...this.list.children].forEach((item, at) => {
      const own = key !== null && this.keys[at] === key;
      item.classList.toggle("selected-line", own);
      if (own && !first) first = item;
    });
    for (const word of this.list.querySelectorAll("[data-name]")) {
      const picked = names.has(word.getAttribute("data-name"));
      word.classList.toggle("picked", picked);
      if (picked && !first) first = word;
    }
    if (reveal && first) first.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
