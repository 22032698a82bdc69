"use strict";
(() => {
  const NAME = 0, CLASS = 1, SAMPLES = 2, CHILDREN = 3;
  const ROW = 18;
  const LEAST = 0.0004; // of the width: less cannot be seen
  const WORD = 30; // pixels: text in less is no word
  const $ = (id) => document.getElementById(id);
  const graph = $("graph"), search = $("search"), found = $("found"), reset = $("reset"), details = $("details");
  const total = DATA.root[SAMPLES];

  const parents = new Map(); // of nodes
  (function link(node) {
    for (const child of node[CHILDREN]) {
      parents.set(child, node);
      link(child);
    }
  })(DATA.root);

  let zoomed = DATA.root;
  let wantedClass = -1;
  let focused = null; // node
  let drawn = new Map(); // node → element

  const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(part * 1000 < whole ? 2 : 1) + "%" : "–";
  const seconds = (samples) => (samples * DATA.period).toFixed(2) + " s";

  function ancestors(node) {
    const list = [];
    for (let n = parents.get(node); n; n = parents.get(n)) list.unshift(n);
    return list;
  }

  function isHit(node) {
    if (wantedClass >= 0) return node[CLASS] === wantedClass;
    const text = search.value.trim().toLowerCase();
    return text !== "" && DATA.names[node[NAME]].toLowerCase().includes(text);
  }

  function box(node, depth, left, width, above) {
    const e = document.createElement("div");
    const wide = width * graph.clientWidth >= WORD;
    e.className = "f" + (above ? " above" : "") + (wide ? "" : " thin") + (isHit(node) ? " hit" : "");
    e.style.left = 100 * left + "%";
    e.style.width = 100 * width + "%";
    e.style.top = depth * ROW + "px";
    e.style.background = DATA.classes[node[CLASS]].colour;
    if (node === DATA.root) e.style.background = "#d5d3cb";
    e.setAttribute("role", "treeitem");
    e.setAttribute("aria-level", depth + 1);
    e.tabIndex = node === (focused || zoomed) ? 0 : -1;
    const name = DATA.names[node[NAME]];
    e.setAttribute("aria-label", name + ", " + percent(node[SAMPLES], total));
    if (wide) e.textContent = name;
    e.addEventListener("click", () => zoom(node));
    e.addEventListener("mouseenter", () => show(node));
    e.addEventListener("focus", () => { focused = node; show(node); });
    graph.append(e);
    drawn.set(node, e);
  }

  function draw() {
    drawn = new Map();
    graph.replaceChildren();
    let depth = 0, deepest = 0;
    for (const node of ancestors(zoomed)) box(node, depth++, 0, 1, true);
    (function down(node, depth, left) {
      box(node, depth, left, node === zoomed ? 1 : node[SAMPLES] / zoomed[SAMPLES], false);
      deepest = Math.max(deepest, depth);
      for (const child of node[CHILDREN]) {
        const width = child[SAMPLES] / zoomed[SAMPLES];
        if (width >= LEAST) down(child, depth + 1, left);
        left += width;
      }
    })(zoomed, depth, 0);
    graph.style.height = (deepest + 1) * ROW + "px";
    const searching = wantedClass >= 0 || search.value.trim() !== "";
    graph.classList.toggle("searching", searching);
    reset.disabled = zoomed === DATA.root && !searching;
    showFound(searching);
  }

  // Samples of functions within functions of the same name count once. A class is
  // where a sample ends.
  function showFound(searching) {
    const sum = (node) => isHit(node) ? node[SAMPLES] : node[CHILDREN].reduce((n, child) => n + sum(child), 0);
    if (!searching) found.textContent = "";
    else {
      const n = wantedClass >= 0 ? DATA.classes[wantedClass].samples : sum(DATA.root);
      found.textContent = percent(n, total) + " of busy time";
    }
  }

  function show(node) {
    const name = document.createElement("strong");
    name.textContent = DATA.names[node[NAME]];
    const self = node[SAMPLES] - node[CHILDREN].reduce((n, child) => n + child[SAMPLES], 0);
    const facts = [
      percent(node[SAMPLES], total) + " of busy time",
      percent(node[SAMPLES], DATA.all) + " of all CPU time",
      node[SAMPLES] + " samples, " + seconds(node[SAMPLES]) + (self > 0 ? ", " + percent(self, total) + " in itself" : ""),
    ];
    if (node !== DATA.root) facts.push(DATA.classes[node[CLASS]].name);
    if (zoomed !== DATA.root) facts.splice(1, 0, percent(node[SAMPLES], zoomed[SAMPLES]) + " of what is shown");
    details.replaceChildren(name, ...facts.map((text) => {
      const e = document.createElement("span");
      e.textContent = text;
      return e;
    }));
  }

  function zoom(node) {
    zoomed = node;
    focused = node;
    draw();
    show(node);
    drawn.get(node)?.focus({ preventScroll: true });
  }

  function clear() {
    search.value = "";
    wantedClass = -1;
    markLegend();
    zoom(DATA.root);
  }

  function move(key) {
    const node = focused || zoomed, parent = parents.get(node);
    const siblings = parent ? parent[CHILDREN] : [node];
    const at = siblings.indexOf(node);
    const next = { ArrowUp: parent, ArrowDown: node[CHILDREN][0], ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1] }[key];
    drawn.get(next)?.focus();
  }

  function markLegend() {
    for (const b of $("legend").querySelectorAll("button")) b.setAttribute("aria-pressed", b.dataset.i == wantedClass);
  }

  function addLegend() {
    DATA.classes.forEach((c, i) => {
      if (c.samples === 0) return;
      const b = document.createElement("button"), swatch = document.createElement("i"), share = document.createElement("b");
      b.type = "button";
      b.dataset.i = i;
      b.setAttribute("aria-pressed", "false");
      swatch.style.background = c.colour;
      share.textContent = percent(c.samples, total);
      b.append(swatch, c.name + " ", share);
      b.addEventListener("click", () => {
        wantedClass = wantedClass === i ? -1 : i;
        search.value = "";
        markLegend();
        draw();
      });
      const item = document.createElement("li");
      item.append(b);
      $("legend").append(item);
    });
  }

  addEventListener("resize", draw);
  search.addEventListener("input", () => { wantedClass = -1; markLegend(); draw(); });
  reset.addEventListener("click", clear);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (zoomed !== DATA.root && document.activeElement !== search) zoom(parents.get(zoomed));
      else clear();
    } else if (document.activeElement === search) return;
    else if (event.key === "/") search.focus();
    else if (event.key.startsWith("Arrow")) move(event.key);
    else if (event.key === "Enter" && focused && graph.contains(document.activeElement)) zoom(focused);
    else return;
    event.preventDefault();
  });

  $("bar").hidden = $("legend").hidden = false;
  addLegend();
  draw();
  show(DATA.root);
})();
