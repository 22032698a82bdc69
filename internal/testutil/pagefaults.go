package testutil

// PageFaults is an expression that lists what a person would stumble over: what is cut off, scrolls sideways, or has too little contrast with what is
// behind it (WCAG 2, 4.5 to 1). The pale page of
// old data is so on purpose.
const PageFaults = `(() => {
  const bad = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) bad.push("scrolls sideways: " + root.scrollWidth + " px");
  const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
  };
  const pale = ["stale", "lost"].includes(document.body.dataset.state);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !e.checkVisibility() || e.closest(".hidden, script, canvas, svg") || pale && e.closest("main")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push("contrast " + ((a + 0.05) / (b + 0.05)).toFixed(2) + ": " + text);
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects()) {
      if (box.right > root.clientWidth + 1 && !e.closest(".scroll, .u-legend")) bad.push("cut off: " + text);
    }
  }
  for (const place of document.querySelectorAll(".chart")) {
    const canvas = place.querySelector("canvas");
    if (!canvas || !canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v)) bad.push("nothing drawn in " + place.id);
  }
  return bad;
})()`
