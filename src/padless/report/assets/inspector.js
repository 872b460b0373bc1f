"use strict";
// The mask inspector. Every mask here lets a query see one interval of keys, counted in real tokens over the row,
// so counts are exact for tokens that are not shown as well.
(() => {
  const root = document.getElementById("tokens");
  if (!root) return;
  const byId = (id) => document.getElementById(id);
  const spans = JSON.parse(root.dataset.spans); // [first slot, real tokens, prefix] of every segment
  const before = [];
  let total = 0;
  for (const [, length] of spans) {
    before.push(total);
    total += length;
  }

  const tokens = Array.from(root.querySelectorAll(".token"), (element) => {
    const { slot, segment, index, position, label, id } = element.dataset;
    const owner = Number(segment) - 1; // -1 on padding
    return { element, slot: Number(slot), owner, place: owner < 0 ? -1 : before[owner] + Number(index), position, label, id };
  });
  let query = tokens.findLast((token) => token.owner === Math.min(1, spans.length - 1)) ?? tokens[0];

  const chosen = (name) => byId("switches").elements[name].value;
  const windowWidth = () => Math.max(1, Math.floor(Number(byId("window").value)) || 1);

  // [first, last] key that a query may attend to, under the switches as they stand; null for padding.
  function interval(token) {
    if (token.owner < 0) return null;
    const isolated = chosen("scope") === "isolated";
    const base = isolated ? before[token.owner] : 0;
    const [, length, prefix] = isolated ? spans[token.owner] : [0, total, spans[0][2]];
    const index = token.place - base;
    const rule = chosen("rule");
    const first = rule === "window" ? Math.max(0, index - windowWidth() + 1) : 0;
    const last = rule === "prefix" ? Math.max(index, Math.min(prefix, length) - 1) : index;
    return [base + first, base + last];
  }

  const inside = (keys, token) => keys !== null && token.owner >= 0 && keys[0] <= token.place && token.place <= keys[1];
  const count = (number) => number.toLocaleString("en-US");

  function slotOf(place) {
    let owner = 0;
    while (owner + 1 < spans.length && before[owner + 1] <= place) owner += 1;
    return spans[owner][0] + place - before[owner];
  }

  function foreign(keys) {
    const begin = before[query.owner];
    const own = Math.min(keys[1], begin + spans[query.owner][1] - 1) - Math.max(keys[0], begin) + 1;
    return keys[1] - keys[0] + 1 - own;
  }

  function describe(keys) {
    const shown = query.element.textContent;
    byId("r-text").textContent = query.owner < 0 ? "padding" : `\u201c${shown}\u201d`;
    byId("r-id").textContent = query.id;
    byId("r-slot").textContent = `${count(query.slot)} of ${count(Number(root.dataset.capacity))}`;
    byId("r-segment").textContent = query.owner < 0 ? "0 (padding)" : String(query.owner + 1);
    byId("r-position").textContent = query.position;
    byId("r-label").textContent = query.label === "-100" ? "-100, no target" : `${query.label}, a target`;
    const many = keys === null ? 0 : keys[1] - keys[0] + 1;
    const where = many > 1 ? `, slots ${count(slotOf(keys[0]))} to ${count(slotOf(keys[1]))}` : many ? ", itself" : "";
    byId("r-count").textContent = `${count(many)} ${many === 1 ? "position" : "positions"}${where}`;
    const strangers = keys === null ? 0 : foreign(keys);
    byId("r-leak").hidden = strangers === 0;
    byId("r-leak").textContent = strangers
      ? `${count(strangers)} of them ${strangers === 1 ? "belongs" : "belong"} to other samples.` : "";
    const rule = chosen("rule") === "window" ? `window of ${count(windowWidth())}` : chosen("rule");
    byId("r-mode").textContent = `Documents ${chosen("scope")}, mask ${rule}.`;
  }

  function rectangle(kind, x, y, width, height) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ class: kind, x, y, width, height })) made.setAttribute(name, value);
    return made;
  }

  // One rectangle for each run of keys that a query may see, its own sample's and others' apart.
  function drawGrid() {
    const made = [];
    tokens.forEach((token, line) => {
      const keys = interval(token);
      let start = 0, kind = "";
      tokens.concat(null).forEach((key, column) => {
        const now = key && inside(keys, key) ? (key.owner === token.owner ? "own" : "stranger") : "";
        if (now === kind) return;
        if (kind) made.push(rectangle(kind, start, line, column - start, 1));
        [start, kind] = [column, now];
      });
    });
    byId("grid").setAttribute("viewBox", `0 0 ${tokens.length} ${tokens.length}`);
    byId("grid").replaceChildren(...made, rectangle("cursor", 0, 0, tokens.length, 1));
  }

  function select(token, focus) {
    query.element.tabIndex = -1;
    query = token;
    query.element.tabIndex = 0;
    if (focus) query.element.focus();
    const keys = interval(query);
    for (const key of tokens) {
      const sees = inside(keys, key);
      const list = key.element.classList;
      list.toggle("query", key === query);
      list.toggle("seen", sees && key.owner === query.owner);
      list.toggle("leak", sees && key.owner !== query.owner);
      list.toggle("unseen-key", !sees && key !== query);
      key.element.setAttribute("aria-pressed", String(key === query));
    }
    byId("grid").lastChild.setAttribute("y", tokens.indexOf(query));
    describe(keys);
  }

  function redraw() {
    drawGrid();
    select(query, false);
  }

  // The token of the next line up or down that lies nearest.
  function vertical(step) {
    const here = query.element.getBoundingClientRect();
    const middle = here.left + here.width / 2;
    let best = null, height = null;
    for (let at = tokens.indexOf(query) + step; tokens[at]; at += step) {
      const box = tokens[at].element.getBoundingClientRect();
      if (Math.abs(box.top - here.top) < 4) continue;
      if (height !== null && Math.abs(box.top - height) >= 4) break;
      height = box.top;
      const away = Math.abs(box.left + box.width / 2 - middle);
      if (best === null || away < best.away) best = { token: tokens[at], away };
    }
    return best?.token;
  }

  function neighbour(key) {
    const at = tokens.indexOf(query);
    switch (key) {
      case "ArrowRight": return tokens[at + 1];
      case "ArrowLeft": return tokens[at - 1];
      case "ArrowDown": return vertical(1);
      case "ArrowUp": return vertical(-1);
      case "Home": return tokens[0];
      case "End": return tokens[tokens.length - 1];
      case "PageDown": return tokens.slice(at).find((token) => token.owner !== query.owner);
      case "PageUp": {
        const other = tokens.slice(0, at).findLast((token) => token.owner !== query.owner);
        return other && tokens.find((token) => token.owner === other.owner);
      }
    }
  }

  root.addEventListener("click", (event) => {
    const element = event.target.closest(".token");
    if (element) select(tokens.find((token) => token.element === element), true);
  });
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const keys = ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp", "Home", "End", "PageDown", "PageUp"];
    if (!keys.includes(event.key)) return;
    event.preventDefault();
    const next = neighbour(event.key);
    if (next) select(next, true);
  });
  byId("grid").addEventListener("click", (event) => {
    const box = byId("grid").getBoundingClientRect();
    const line = Math.floor(((event.clientY - box.top) / box.height) * tokens.length);
    if (tokens[line]) select(tokens[line], false);
  });
  byId("switches").addEventListener("input", (event) => {
    if (event.target === byId("window")) byId("switches").elements.rule.value = "window";
    redraw();
  });
  byId("switches").addEventListener("submit", (event) => event.preventDefault());
  redraw();
})();
