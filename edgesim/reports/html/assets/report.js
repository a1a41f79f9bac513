"use strict";
(() => {
  const drawn = new WeakMap(); // the figure that a chart shows
  const SHEET = 688; // pixels between the margins of A4
  const paper = matchMedia("print");
  let printing = false; // a page that is being printed still has the width of the screen

  // A drawing with a view box can be scaled to the width of a sheet of paper.
  const framed = (chart) => {
    for (const svg of chart.querySelectorAll(".main-svg")) {
      const [width, height] = [svg.getAttribute("width"), svg.getAttribute("height")];
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      chart.style.setProperty("--shape", `${width} / ${height}`);
    }
  };
  const sizeOf = (chart) => {
    const height = parseFloat(chart.style.height);
    if (!printing && !paper.matches) return { width: chart.clientWidth, height };
    return { width: SHEET, height: chart.dataset.rows ? height : 0.66 * height }; // rows have heights of their own
  };
  const ticks = (width) => (width < 420 ? 5 : 8); // fewer fit a phone

  // --- names beside the ends of curves, or beside marks, instead of a legend -------------------------------------

  const pen = document.createElement("canvas").getContext("2d");
  const [LINE, GAP] = [15, 7]; // pixels: height of a name, and its distance from what it names
  const FARTHEST = 0.36; // share of a chart's width that names at its right edge may take

  const meets = (box, [ax, ay], [bx, by]) => {
    // clips the segment to the box
    let [from, to] = [0, 1];
    for (const [start, move, low, high] of [[ax, bx - ax, box.left, box.right], [ay, by - ay, box.top, box.bottom]]) {
      if (move === 0 && (start < low || start > high)) return false;
      if (move === 0) continue;
      const cuts = [(low - start) / move, (high - start) / move];
      [from, to] = [Math.max(from, Math.min(...cuts)), Math.min(to, Math.max(...cuts))];
    }
    return from < to;
  };
  const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

  // Places the name of each item without touching a line, a mark or another name; null if there is no room.
  const placed = (items, lines, marks, width, height) => {
    const names = [], leaders = [], [first] = items;
    // names that all point at one spot do not tell the curves apart
    if (items.length > 1 && items.every((item) => Math.hypot(item.x - first.x, item.y - first.y) < GAP)) return null;
    const put = (item, box) => {
      const middle = (box.top + box.bottom) / 2, x = Math.min(Math.max(item.x, box.left - 2), box.right + 2);
      names.push({ ...item, box, middle });
      if (box.edge) leaders.push({ item, from: [item.x + 3, item.y], to: [box.left - 2, middle] });
      else if (box.far) leaders.push({ item, from: [item.x, item.y], to: [x, item.y < middle ? box.top : box.bottom] });
    };
    // those that end at the right edge stand in the margin, pushed apart in their order
    const edge = items.filter((item) => item.edge).sort((a, b) => a.y - b.y), tops = [];
    if (edge.length * LINE > height) return null;
    for (const item of edge) tops.push(Math.max(item.y - LINE / 2, tops.length ? tops.at(-1) + LINE : 0));
    for (let i = tops.length - 1, most = height - LINE; i >= 0; i--, most = tops[i + 1] - LINE) tops[i] = Math.min(tops[i], most);
    const shifted = edge.some((item, i) => Math.abs(tops[i] + LINE / 2 - item.y) > 3);
    const left = width + GAP + (shifted ? 2 * GAP : 0);
    edge.forEach((item, i) => put(item, { left, right: left + item.length, top: tops[i], bottom: tops[i] + LINE, edge: shifted }));

    for (const item of items.filter((each) => !each.edge).sort((a, b) => b.x - a.x)) {
      const beside = item.edge === null ? GAP + 3 : GAP; // a mark is larger than the end of a curve
      const spots = [[beside, -LINE / 2], [-beside - item.length, -LINE / 2]];
      for (const away of [GAP - 2, LINE + GAP, 2 * LINE + GAP, 3 * LINE + GAP])
        for (const across of [-item.length / 2, GAP, -GAP - item.length]) spots.push([across, -away - LINE], [across, away]);
      const free = spots.find(([dx, dy]) => {
        const box = { left: item.x + dx - 2, right: item.x + dx + item.length + 2, top: item.y + dy, bottom: item.y + dy + LINE };
        const inside = box.left >= 0 && box.right <= width && box.top >= 0 && box.bottom <= height;
        const far = Math.abs(dy + LINE / 2) > LINE + GAP;
        const leader = [[item.x, item.y], [Math.min(Math.max(item.x, box.left), box.right), dy < 0 ? box.bottom : box.top]];
        return inside && !names.some((name) => overlap(name.box, box) || (far && meets(name.box, ...leader)))
          && !leaders.some((each) => meets(box, each.from, each.to)) && !marks.some((mark) => mark.item !== item.name && overlap(mark, box))
          && !lines.some((line) => line.some((point, i) => i > 0 && meets(box, line[i - 1], point)));
      });
      if (!free) return null;
      const [dx, dy] = free, at = { left: item.x + dx, top: item.y + dy };
      put(item, { ...at, right: at.left + item.length, bottom: at.top + LINE, far: Math.abs(dy + LINE / 2) > LINE + GAP });
    }
    return { names, leaders };
  };

  // Names the curves or marks of a chart; the legend stays for those that have no room.
  const name = (chart) => {
    const { data, layout } = JSON.parse(drawn.get(chart)), size = chart._fullLayout._size;
    const kinds = new Set(data.map((trace) => trace.meta && trace.meta.named).filter(Boolean));
    if (!kinds.size) return Promise.resolve();
    const shown = chart._fullData.filter((trace) => trace.visible === true);
    const [x, y] = [chart._fullLayout.xaxis.range, chart._fullLayout.yaxis.range];
    pen.font = `${layout.font.size}px ${layout.font.family}`;
    const named = shown.filter((trace) => trace.meta && trace.meta.named && trace.x.length);
    const end = Math.max(...named.map((trace) => trace.x.at(-1)));
    const lengths = new Map(named.map((trace) => [trace, pen.measureText(trace.meta.setting).width]));
    const atEdge = (trace) => trace.meta.named === "end" && end - trace.x.at(-1) < 0.03 * (x[1] - x[0]);
    const margin = Math.max(layout.margin.r, ...named.filter(atEdge).map((trace) => lengths.get(trace) + 3 * GAP + 4));
    const whole = chart._fullLayout.width, width = whole - size.l - margin, height = size.h;
    const at = (px, py) => [((px - x[0]) / (x[1] - x[0])) * width, (1 - (py - y[0]) / (y[1] - y[0])) * height];
    const items = named.map((trace) => {
      const [px, py] = at(trace.x.at(-1), trace.y.at(-1));
      return { name: trace.meta.setting, text: trace.name, x: px, y: py, length: lengths.get(trace), edge: trace.meta.named === "end" ? atEdge(trace) : null, colour: (trace.line || trace.marker).color };
    });
    const lines = shown.filter((trace) => trace.x.length > 1).map((trace) => [...trace.x].map((px, i) => at(px, trace.y[i])));
    for (const shape of layout.shapes || []) lines.push([[0, at(0, shape.y0)[1]], [width, at(0, shape.y1)[1]]]);
    const marks = [];
    for (const trace of named.filter((each) => each.meta.named === "spot")) {
      const [px, py] = at(trace.x[0], trace.y[0]), ends = (bar, low, high) => bar ? [low - bar.arrayminus[0], high + bar.array[0]] : [low, high];
      marks.push({ item: trace.meta.setting, left: px - GAP, right: px + GAP, top: py - GAP, bottom: py + GAP });
      const [left, right] = ends(trace.error_x, trace.x[0], trace.x[0]), [low, high] = ends(trace.error_y, trace.y[0], trace.y[0]);
      lines.push([at(left, trace.y[0]), at(right, trace.y[0])], [at(trace.x[0], low), at(trace.x[0], high)]);
    }
    const found = margin <= FARTHEST * whole && width > 0 ? placed(items, lines, marks, width, height) : null;
    const [u, v] = [(px) => px / width, (py) => 1 - py / height], paperly = { xref: "paper", yref: "paper" };
    chart.dataset.named = String(Boolean(found));
    return Plotly.relayout(chart, {
      "margin.r": found ? margin : layout.margin.r,
      annotations: (found ? found.names : []).map((each) => ({
        ...paperly, x: u(each.box.left), y: v(each.middle), text: each.text, showarrow: false, xanchor: "left", yanchor: "middle", borderpad: 0, xshift: -1,
      })),
      shapes: [...(layout.shapes || []), ...(found ? found.leaders : []).map(({ item, from, to }) => ({
        ...paperly, type: "line", x0: u(from[0]), y0: v(from[1]), x1: u(to[0]), y1: v(to[1]), line: { color: item.colour, width: 1 },
      }))],
    });
  };

  // The legend of a section is folded away when all of its curves have names.
  const fold = (section) => {
    const keys = section.querySelector(".keys");
    if (!keys) return;
    const all = [...section.querySelectorAll(".chart")].every((chart) => chart.dataset.named === "true");
    if (keys.classList.contains("named") === all) return;
    keys.classList.toggle("named", all);
    keys.open = !all;
  };
  const finish = (chart) => {
    name(chart);
    framed(chart);
    fold(chart.closest("section"));
  };

  const draw = (chart) => {
    const text = document.getElementById(chart.dataset.figure).textContent;
    if (drawn.get(chart) === text) return;
    drawn.set(chart, text);
    const { data, layout } = JSON.parse(text);
    const off = [...chart.closest("section").querySelectorAll('[aria-pressed="false"]')].map((each) => each.dataset.setting);
    for (const trace of data) if (trace.meta && off.includes(trace.meta.setting)) trace.visible = false;
    if (layout.yaxis.tickmode === "array") chart.dataset.rows = layout.yaxis.tickvals.length;
    const { width, height } = sizeOf(chart);
    Object.assign(layout, { width, height });
    layout.xaxis.nticks = ticks(width);
    chart.dataset.size = `${width} ${height}`;
    return Plotly.react(chart, data, layout, { displayModeBar: false, responsive: false }).then(() => finish(chart));
  };

  const fit = (chart) => {
    const { width, height } = sizeOf(chart), size = `${width} ${height}`;
    if (!width || !chart.data || chart.dataset.size === size) return;
    chart.dataset.size = size;
    Plotly.relayout(chart, { width, height, "xaxis.nticks": ticks(width) });
    finish(chart);
  };
  const fitAll = () => document.querySelectorAll(".chart").forEach(fit);
  const watched = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((each) => fit(each.target))));
  // A sheet of paper has drawings of its own width, in which text keeps its size.
  for (const [event, begins] of [["beforeprint", true], ["afterprint", false]])
    addEventListener(event, () => { printing = begins; fitAll(); });
  paper.addEventListener("change", fitAll);

  const toggle = (button) => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const chart of button.closest("section").querySelectorAll(".chart")) {
      const places = chart.data.map((trace, i) => (trace.meta && trace.meta.setting === button.dataset.setting ? i : -1));
      const own = places.filter((i) => i >= 0);
      if (own.length) Plotly.restyle(chart, { visible: shown }, own).then(() => finish(chart));
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
