"use strict";
// Keeps the page current: it asks for the page again, puts what changed into the one that is
// shown, and says how old the data is, and when the exporter no longer answers.
(function () {
  const { colour, dashes, axis, keep } = page;
  const status = document.getElementById("status");
  const spoken = document.getElementById("spoken");
  const offline = "no connection to the exporter";

  // What the page is of: the exporter's clock at the last answer, and this browser's then. A
  // browser's clock may be wrong, and steps; the monotonic one may stand still while the
  // machine sleeps. The later of both counts, so that data never looks younger than it is.
  const seen = { etag: document.body.dataset.etag, problem: "", since: 0 };
  answered(Number(document.body.dataset.now));

  function answered(now) {
    seen.now = now;
    seen.wall = Date.now();
    seen.monotonic = performance.now();
  }

  function now() {
    return seen.now + Math.max(0, Date.now() - seen.wall, performance.now() - seen.monotonic) / 1000;
  }

  const about = (name) => Number(document.body.dataset[name]);

  // hostTime is a time as a Date whose local time is the host's.
  function hostTime(seconds) {
    const date = new Date(seconds * 1000);
    return new Date(date.getTime() + (about("offset") + date.getTimezoneOffset() * 60) * 1000);
  }

  function clock(seconds) {
    return hostTime(seconds).toTimeString().slice(0, 8) + " " + document.body.dataset.zone;
  }

  // showAges shows how old everything is, and whether the exporter answers.
  function showAges() {
    const some = about("at") > 0;
    const age = Math.max(0, now() - about("at"));
    const from = some ? "data from " + clock(about("at")) + ", " + units.roughly(Math.max(1, Math.round(age))) + " old" : "no data yet";
    let state = some ? "live" : "waiting", text = some ? "live: " + from : from;
    if (seen.problem) {
      state = "lost";
      text = seen.problem + " since " + clock(seen.since) + ": " + from;
    } else if (some && age > about("stale")) {
      state = "stale";
      text = "stale: the exporter answers, but its data does not change: " + from;
    }
    if (document.body.dataset.state !== state) announce(text);
    document.body.dataset.state = state;
    status.textContent = text;
    for (const place of document.querySelectorAll("[data-read]")) {
      const since = Math.max(0, now() - Number(place.dataset.read));
      place.textContent = units.roughly(Math.max(1, Math.round(since)));
      const bound = place.closest("[data-old]");
      if (bound) bound.classList.toggle("old", since > Number(bound.dataset.old));
    }
  }

  // announce gives a line to screen readers.
  function announce(text) {
    if (spoken.textContent !== text) spoken.textContent = text;
  }

  const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "";

  // patch makes an element what another one is, and leaves what is equal as it is: focus,
  // selection, and what was opened stay.
  function patch(shown, fresh) {
    if (shown.isEqualNode(fresh)) return;
    if (shown.nodeName !== fresh.nodeName || keyOf(shown) !== keyOf(fresh)) {
      shown.replaceWith(fresh);
      return;
    }
    if (shown.nodeType !== Node.ELEMENT_NODE) {
      shown.nodeValue = fresh.nodeValue;
      return;
    }
    patchAttributes(shown, fresh);
    if (!shown.hasAttribute("data-own")) patchChildren(shown, fresh);
  }

  function patchAttributes(shown, fresh) {
    for (const { name } of [...shown.attributes]) {
      if (name !== "open" && !fresh.hasAttribute(name)) shown.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (name !== "open" && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
    }
  }

  function patchChildren(shown, fresh) {
    const keyed = new Map([...shown.children].filter(keyOf).map((child) => [keyOf(child), child]));
    let next = shown.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      const match = key ? keyed.get(key) : next && !keyOf(next) ? next : null;
      if (match && match === next) next = next.nextSibling;
      else shown.insertBefore(match || child, next);
      if (match) patch(match, child);
    }
    while (next) {
      const after = next.nextSibling;
      next.remove();
      next = after;
    }
  }

  // take puts a page that was received in place of the one that is shown.
  function take(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!fresh.getElementById("status")) throw new Error("what answers is not natkit exporter");
    if (fresh.body.dataset.version !== document.body.dataset.version) {
      location.reload(); // the page of another natkit, with other scripts
      return;
    }
    document.title = fresh.title;
    Object.assign(document.body.dataset, { ...fresh.body.dataset, state: document.body.dataset.state });
    const before = verdicts();
    patch(document.querySelector("main"), fresh.querySelector("main"));
    // Numbers in a verdict change all the time; what it is about does not.
    if (verdicts() !== before) announce([...document.querySelectorAll("[data-verdict]")].map((v) => v.textContent).join(". "));
    history = read();
    addBuilders();
    redraw();
  }

  const verdicts = () => [...document.querySelectorAll("[data-verdict]")].map((v) => v.dataset.verdict).join();

  // poll requests the page, unless it is the one that is shown.
  async function poll() {
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(), 10000);
    try {
      const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: limit.signal, headers: { "If-None-Match": seen.etag } });
      if (answer.status !== 304 && !answer.ok) throw new Error("the exporter answers " + answer.status + " " + answer.statusText);
      const text = answer.status === 304 ? "" : await answer.text();
      seen.etag = answer.headers.get("ETag");
      answered(Number(answer.headers.get("X-Natkit-Now")));
      if (text) take(text);
      seen.problem = "";
    } catch (err) {
      const problem = err.name === "TypeError" || err.name === "AbortError" ? offline : err.message;
      if (!seen.problem) seen.since = now();
      seen.problem = problem;
    } finally {
      clearTimeout(timer);
    }
  }

  // A page that cannot be seen asks for nothing.
  let polling = false;
  async function tick() {
    if (polling || document.hidden) return;
    polling = true;
    await poll();
    polling = false;
    showAges();
    due = performance.now() + (seen.problem ? 2 : 1) * 1000 * Math.min(Math.max(about("every"), 1), 30);
  }
  let due = performance.now() + 1000 * about("every");
  setInterval(() => {
    showAges();
    if (performance.now() >= due) tick();
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    showAges();
    if (performance.now() >= due) tick();
  });

  // --- charts ---

  let history = read();
  function read() {
    return JSON.parse(document.getElementById("history").textContent);
  }

  const write = {
    count: (v) => units.count(v), rate: (v) => units.rate(v) + "/s", share: units.percent, bytes: units.bytes,
  };

  // build is a chart of the history; where the cursor is nowhere its legend shows the last point of which something is known, with its
  // time: it may be old, and what is not known of it has no value.
  function build(name) {
    const chart = history.charts[name];
    if (!chart) return null;
    const text = (v) => v == null ? units.none : write[chart.unit](v);
    const last = (u) => u.data[0].findLastIndex((_, i) => u.data.slice(1).some((values) => values[i] != null));
    return {
      data: [chart.times].concat(chart.curves.map((c) => c.values)),
      options: {
        height: 170, padding: [8, 34, 0, 0], // right: half of the last time of the scale, with its seconds
        tzDate: (seconds) => hostTime(seconds),
        cursor: { sync: { key: "live" }, y: false, drag: { x: false, y: false } },
        scales: { y: { range: (u, low, high) => [0, (high || 1) * 1.08] } },
        series: [{ label: "at", value: (u, v) => clock(v ?? u.data[0][last(u)]) }].concat(chart.curves.map((c, i) => ({
          label: c.label, stroke: colour(c.limit ? "dim" : "series-" + (i + 1) % 6), width: c.limit ? 1 : 2,
          dash: c.limit ? [6, 4] : dashes[i % dashes.length], fill: i === 0 && !c.limit ? colour("series-1") + "22" : undefined,
          points: { show: false }, value: (u, v, s, i) => text(i == null ? u.data[s][last(u)] : v),
        }))),
        axes: [axis({ space: 60, values: (u, ticks) => ticks.map((v) => hostTime(v).toTimeString().slice(0, u.scales.x.max - u.scales.x.min < 300 ? 8 : 5)) }), axis({ size: 62, values: (u, ticks) => ticks.map((v) => short(chart.unit, v)) })],
      },
    };
  }

  // short is a number of a scale: 250 k for 250,000.
  function short(unit, v) {
    if (unit === "share") return units.percent(v);
    if (unit === "bytes") return units.bytes(v);
    for (const [size, letter] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
      if (v >= size) return Number((v / (size === 1e4 ? 1e3 : size)).toPrecision(4)) + letter;
    }
    return Number(v.toPrecision(4)).toLocaleString("en-US");
  }

  const builders = {};
  function addBuilders() {
    for (const name in history.charts) builders["chart-" + name] = () => build(name);
  }
  addBuilders();
  const redraw = keep(builders);
  showAges();
})();
