// Filters for tables: `<div class="filtered" markdown data-select="2,3" data-csv="path.csv">` around a Markdown table.
// The table gets a text box, a select box for each column named in data-select (numbers from 1), a count of rows, and a
// link to the CSV file (a path from the built page). Without JavaScript the whole table stands there.
(() => {
  "use strict";

  const said = (cell) => cell.textContent.trim();

  // Numbers by size, before words in their order.
  const inOrder = (a, b) => {
    const x = parseFloat(a), y = parseFloat(b);
    if (!isNaN(x) && !isNaN(y)) return x - y || a.localeCompare(b);
    return isNaN(x) - isNaN(y) || a.localeCompare(b);
  };

  function labelled(text, control) {
    const label = document.createElement("label");
    label.append(text + " ", control);
    return label;
  }

  function chooser(rows, column) {
    const select = document.createElement("select");
    const values = new Set(rows.map((row) => said(row.cells[column])));
    select.add(new Option("all", ""));
    for (const value of [...values].filter(Boolean).sort(inOrder)) select.add(new Option(value, value));
    return select;
  }

  function csvLink(path) {
    const link = document.createElement("a");
    link.href = path;
    link.download = "";
    link.textContent = "Download CSV";
    return link;
  }

  function addFilters(box) {
    const table = box.querySelector("table");
    if (!table) return;
    const rows = [...table.tBodies[0].rows];
    const columns = (box.dataset.select || "").split(",").filter(Boolean).map((number) => Number(number) - 1);
    const text = document.createElement("input");
    text.type = "search";
    const chosen = columns.map((column) => [column, chooser(rows, column)]);
    const count = document.createElement("span");
    count.setAttribute("role", "status");

    function update() {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const content = row.textContent.toLowerCase();
        const fits = words.every((word) => content.includes(word)) &&
          chosen.every(([column, select]) => !select.value || said(row.cells[column]) === select.value);
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    }

    const bar = document.createElement("div");
    bar.className = "filters";
    bar.append(labelled("Find", text));
    for (const [column, select] of chosen) bar.append(labelled(said(table.tHead.rows[0].cells[column]), select));
    bar.append(count);
    if (box.dataset.csv) bar.append(csvLink(box.dataset.csv));
    bar.addEventListener("input", update);
    box.prepend(bar);
    update();
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".filtered").forEach(addFilters));
})();
