"use strict";
// Draws the curves of a simulation from the JSON in #charts.
(function () {
  const { number, colour, dashes, axis, keep, offer } = page;
  const report = document.getElementById("report").textContent;
  const data = JSON.parse(document.getElementById("charts").textContent);

  // clock writes seconds since the beginning, as a time of day where there is one.
  function clock(at) {
    if (data.time_of_day) {
      const minutes = Math.round((data.start_s + at) / 60) % 1440;
      return String(Math.floor(minutes / 60)).padStart(2, "0") + ":" + String(minutes % 60).padStart(2, "0");
    }
    if (at >= 7200) return number.format(at / 3600) + " h";
    return at >= 300 ? number.format(at / 60) + " min" : number.format(at) + " s";
  }

  const steps = [0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800, 2592000];

  function levels(chart) {
    return (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("dim");
      ctx.font = 11 * uPlot.pxRatio + "px system-ui, sans-serif";
      ctx.textAlign = "left";
      ctx.textBaseline = "bottom";
      ctx.setLineDash([6 * uPlot.pxRatio, 4 * uPlot.pxRatio]);
      const all = chart.levels || [];
      all.forEach((level, i) => {
        const y = u.valToPos(level.value, "y", true);
        if (y < bbox.top || y > bbox.top + bbox.height) return;
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        // The labels have lines of their own above, where no curve is.
        ctx.fillText(number.format(Math.round(level.value)) + "/s: " + level.label, bbox.left, bbox.top - (3 + 14 * i) * uPlot.pxRatio);
      });
      ctx.restore();
    };
  }

  function build(chart) {
    const x = chart.curves[0].values.map((_, i) => i * data.interval_s);
    const tops = (chart.levels || []).map((l) => l.value);
    return {
      data: [x].concat(chart.curves.map((c) => c.values)),
      options: {
        height: 220 + 14 * tops.length, padding: [12 + 14 * tops.length, 12, 0, 0],
        cursor: { sync: { key: "course" }, y: false },
        scales: { x: { time: false }, y: { range: (u, lo, hi) => [0, Math.max(hi || 1, ...tops.filter((t) => t < 2 * hi)) * 1.08] } },
        hooks: { draw: [levels(chart)] },
        series: [{ label: "at", value: (u, v) => v == null ? "–" : clock(v) }].concat(chart.curves.map((c, i) => ({
          label: c.label, stroke: colour("series-" + (i + 1) % 6), width: 2, dash: dashes[i % dashes.length],
          points: { show: false }, value: (u, v) => v == null ? "–" : number.format(v),
        }))),
        axes: [
          axis({ incrs: steps, values: (u, ticks) => ticks.map(clock) }),
          axis({ size: 70, values: (u, ticks) => ticks.map((v) => number.format(v)) }),
        ],
      },
    };
  }

  const builders = {};
  data.charts.forEach((chart, i) => { builders["chart-" + i] = () => build(chart); });
  keep(builders);
  offer(report, "natkit-simulate-" + (JSON.parse(report).config.name || "config"));
})();
