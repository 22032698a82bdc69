"use strict";
// Draws the charts of the page from the JSON in #charts. Everything that the
// charts show is in the page's tables too.
(function () {
  const report = document.getElementById("report").textContent;
  const data = JSON.parse(document.getElementById("charts").textContent);
  const { number, colour, dashes, axis, keep, offer } = page;

  // steps lays the stages one after the other. Each interval becomes two points,
  // so that its rate is drawn as a level; between stages the line is interrupted.
  function steps(field) {
    const x = [], y = [], bands = [];
    let start = 0;
    for (const stage of data.stages) {
      const hair = 1e-6;
      for (const part of stage.course) {
        x.push(start + part.from + hair, start + part.to - hair);
        y.push(part[field], part[field]);
      }
      bands.push({ name: stage.name, from: start, to: start + stage.seconds });
      start += stage.seconds;
      x.push(start);
      y.push(null);
    }
    return { x, y, bands, end: start };
  }

  function stageBands(bands) {
    return (u) => {
      const { ctx, bbox } = u;
      const ratio = uPlot.pxRatio;
      ctx.save();
      ctx.font = "600 " + 12 * ratio + "px system-ui, sans-serif";
      ctx.textBaseline = "top";
      // Where a name does not fit into its stage they have numbers, of the line above.
      const room = (band) => u.valToPos(band.to, "x", true) - u.valToPos(band.from, "x", true) - 8 * ratio;
      const fit = bands.every((band) => ctx.measureText(band.name).width <= room(band));
      let taken = 0;
      bands.forEach((band, i) => {
        const left = u.valToPos(band.from, "x", true);
        const right = u.valToPos(band.to, "x", true);
        if (i % 2 === 1) {
          ctx.fillStyle = colour("band");
          ctx.fillRect(left, bbox.top, right - left, bbox.height);
        }
        ctx.fillStyle = colour("text");
        const label = fit ? band.name : String(i + 1);
        const at = left + 4 * ratio;
        if (i === 0 || at > taken) {
          ctx.fillText(label, at, bbox.top - 16 * ratio);
          taken = at + ctx.measureText(label).width + 4 * ratio;
        }
      });
      ctx.restore();
    };
  }

  function courseChart(field, title, tone) {
    const s = steps(field);
    const stageAt = (at) => s.bands.find((b) => at <= b.to) || s.bands[s.bands.length - 1];
    return {
      data: [s.x, s.y],
      options: {
        title, height: field === "failed_per_second" ? 170 : 260, padding: [22, 12, 0, 0],
        cursor: { sync: { key: "course" }, y: false },
        scales: { x: { time: false, range: () => [0, s.end] }, y: { range: (u, lo, hi) => [0, (hi || 1) * 1.08] } },
        hooks: { drawClear: [stageBands(s.bands)] },
        series: [
          { label: "at", value: (u, v) => v == null ? "–" : stageAt(v).name + ", " + (v - stageAt(v).from).toFixed(2) + " s" },
          { label: title, stroke: colour(tone), width: 2, fill: colour(tone) + "33", points: { show: false }, value: (u, v) => v == null ? "–" : number.format(v) + "/s" },
        ],
        axes: [
          axis({ values: (u, ticks) => ticks.map((v) => v + " s") }),
          axis({ size: 70, values: (u, ticks) => ticks.map((v) => number.format(v)) }),
        ],
      },
    };
  }

  function latencyChart() {
    const stages = data.stages.map((s, i) => ({ s, i })).filter(({ s }) => s.latency_ms.length > 0);
    const x = data.percentiles.map((_, i) => i);
    const positive = (v) => v > 0 ? v : null;
    return {
      data: [x].concat(stages.map(({ s }) => s.latency_ms.map(positive))),
      options: {
        height: 320, padding: [8, 24, 0, 0],
        scales: { x: { time: false, range: () => [-0.2, x.length - 0.8] }, y: { distr: 3 } },
        cursor: { y: false },
        series: [{ label: "percentile", value: (u, v) => v == null ? "–" : data.percentiles[v] }].concat(stages.map(({ s, i }) => ({
          label: s.name, stroke: colour("series-" + i % 6), width: 2, dash: dashes[i % dashes.length],
          points: { show: true, size: 6, fill: colour("paper") },
          value: (u, v) => v == null ? "–" : number.format(v) + " ms",
        }))),
        axes: [
          axis({ splits: () => x, values: () => data.percentiles }),
          axis({ size: 70, values: (u, ticks) => ticks.map((v) => v == null ? "" : number.format(v)) }),
        ],
      },
    };
  }

  const builders = {
    "course-completed": () => courseChart("completed_per_second", "completed", "series-1"),
    "course-failed": () => courseChart("failed_per_second", "failed", "bad"),
    "latency-chart": latencyChart,
  };
  keep(builders);
  offer(report, "natkit-lab-" + JSON.parse(report).scenario);
})();
