"use strict";
// Writes numbers as package units does, for what the page itself counts: ages and the
// scales of charts. TestUnitsInBrowser compares both.
const units = (function () {
  const none = "–";

  // fixed rounds to even where a number is halfway, as Go does, and toFixed does not.
  function fixed(v, decimals) {
    if (!Number.isFinite(v)) return none;
    const exact = v.toFixed(decimals + 40);
    const cut = exact.length - 40;
    const down = exact.slice(0, decimals === 0 ? cut - 1 : cut);
    const halfway = /^50*$/.test(exact.slice(cut));
    const text = halfway && "02468".includes(down.at(-1)) ? down : v.toFixed(decimals);
    return text.replace(/^-?\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
  }

  const count = (n) => fixed(n, 0);

  function rate(perSecond) {
    const size = Math.abs(perSecond);
    if (size === 0) return "0";
    return fixed(perSecond, size >= 1000 ? 0 : size >= 10 ? 1 : 2);
  }

  function roughly(seconds) {
    if (seconds < 0.001) return "less than 1 ms";
    if (seconds < 0.9995) return fixed(1000 * seconds, 0) + " ms";
    if (seconds < 9.95) return fixed(seconds, 1).replace(/\.0$/, "") + " s";
    if (seconds < 120) return fixed(seconds, 0) + " s";
    if (seconds < 2 * 3600) return fixed(seconds / 60, 0) + " min";
    return fixed(seconds / 3600, 0) + " h";
  }

  function percent(share) {
    const p = Math.abs(share) * 100;
    if (p === 0 || p >= 99.95) return fixed(share * 100, 0) + " %";
    if (p >= 1) return fixed(share * 100, 1).replace(/\.0$/, "") + " %";
    return p < 0.01 ? "<0.01 %" : fixed(share * 100, 2) + " %";
  }

  function bytes(n) {
    const names = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; Math.abs(n) >= 1024 && unit < names.length - 1; unit++) n /= 1024;
    return fixed(n, n === Math.trunc(n) || Math.abs(n) >= 10 ? 0 : 1) + " " + names[unit];
  }

  return { none, fixed, count, rate, roughly, percent, bytes };
})();
