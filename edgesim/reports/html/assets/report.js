"use strict";
(() => {
  const drawn = new WeakMap(); // the figure that a chart shows

  // A drawing with a view box can be scaled to the width of a sheet of paper.
  const framed = (chart) => {
    for (const svg of chart.querySelectorAll(".main-svg")) {
      const [width, height] = [svg.getAttribute("width"), svg.getAttribute("height")];
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      chart.style.setProperty("--shape", `${width} / ${height}`);
    }
  };

  // Fewer ticks fit a phone.
  const ticks = (chart) => (chart.clientWidth < 420 ? 5 : 8);
  const draw = (chart) => {
    const text = document.getElementById(chart.dataset.figure).textContent;
    if (drawn.get(chart) === text) return;
    drawn.set(chart, text);
    const { data, layout } = JSON.parse(text);
    const off = [...chart.closest("section").querySelectorAll('[aria-pressed="false"]')].map((each) => each.dataset.setting);
    for (const trace of data) if (trace.meta && off.includes(trace.meta.setting)) trace.visible = false;
    if (chart.dataset.size) {
      Object.assign(layout, { width: chart.clientWidth, height: chart.clientHeight });
      layout.xaxis.nticks = ticks(chart);
    }
    return Plotly.react(chart, data, layout, { displayModeBar: false, responsive: false }).then(() => framed(chart));
  };

  // A sheet of paper shows what stood on the screen.
  const fit = (chart) => {
    const [width, height] = [chart.clientWidth, chart.clientHeight], size = `${width} ${height}`;
    if (matchMedia("print").matches || !width || chart.dataset.size === size) return;
    chart.dataset.size = size;
    Plotly.relayout(chart, { width, height, "xaxis.nticks": ticks(chart) }).then(() => framed(chart));
  };
  const watched = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((each) => fit(each.target))));

  const toggle = (button) => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const chart of button.closest("section").querySelectorAll(".chart")) {
      const places = chart.data.map((trace, i) => (trace.meta && trace.meta.setting === button.dataset.setting ? i : -1));
      const own = places.filter((i) => i >= 0);
      if (own.length) Plotly.restyle(chart, { visible: shown }, own);
    }
  };

  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  const sort = (button) => {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const downward = head.getAttribute("aria-sort") === "ascending";
    const column = head.cellIndex, key = (row) => row.cells[column].dataset.key;
    const rows = [...body.rows].sort((a, b) => {
      if (!key(a) || !key(b)) return (key(a) ? 0 : 1) - (key(b) ? 0 : 1); // what is not known comes last
      return (downward ? -1 : 1) * compare(key(a), key(b));
    });
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", downward ? "descending" : "ascending");
    body.append(...rows);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.setting !== undefined) toggle(button);
    else if (button.closest(".sortable")) sort(button);
  });

  const show = () => {
    const charts = [...document.querySelectorAll(".chart")];
    return Promise.all(charts.map(draw)).then(() => {
      charts.forEach(fit);
      charts.forEach((chart) => watched.observe(chart));
      document.documentElement.dataset.drawn = charts.length;
    });
  };
  document.addEventListener("edgesim:changed", show);
  show();
})();
