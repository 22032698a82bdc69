"use strict";
// What the pages with charts have in common: number format, colours, axes, drawing
// again when the width or the theme changes, and the JSON to download.
const page = (function () {
  const number = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 2]];

  function axis(extra) {
    return Object.assign({
      stroke: colour("dim"),
      grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1 },
      font: "12px system-ui, sans-serif",
    }, extra);
  }

  // keep draws the charts that builders make, by the id of their place. What it returns draws
  // them with new data, those whose place came or went as well.
  function keep(builders) {
    const drawn = {};
    function show(id, anew) {
      const place = document.getElementById(id);
      const chart = place && builders[id]();
      const some = chart && chart.data.length > 1 && chart.data[0].length > 0;
      if (drawn[id] && some && !anew && place.contains(drawn[id].root)) {
        drawn[id].setData(chart.data);
        return;
      }
      if (drawn[id]) drawn[id].destroy();
      delete drawn[id];
      if (!some) return;
      chart.options.width = place.clientWidth;
      drawn[id] = new uPlot(chart.options, chart.data, place);
    }
    function draw(anew) {
      for (const id in builders) show(id, anew);
    }
    draw(true);
    new ResizeObserver(() => {
      for (const id in drawn) {
        const width = document.getElementById(id).clientWidth;
        if (width > 0 && width !== drawn[id].width) drawn[id].setSize({ width, height: drawn[id].height });
      }
    }).observe(document.querySelector("main"));
    // Colours are painted into the canvas, so another theme needs another drawing.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true));
    return () => draw(false);
  }

  function offer(report, name) {
    const link = document.getElementById("download");
    const pretty = JSON.stringify(JSON.parse(report), null, 2) + "\n";
    link.href = URL.createObjectURL(new Blob([pretty], { type: "application/json" }));
    link.download = name.replace(/[^\w.-]+/g, "-") + ".json";
    link.hidden = false;
  }

  return { number, colour, dashes, axis, keep, offer };
})();
