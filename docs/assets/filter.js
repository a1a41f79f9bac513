// Filters for tables: `<div class="filtered" markdown data-select="2,3" data-csv="path.csv">` around a Markdown table.
// The table gets a text box, a select box for each column named in data-select (numbers from 1), a count of rows, and a
// link to the CSV file (a path from the built page). Without JavaScript the whole table stands there.
(() => {
  "use strict";

  const MOST_CHOICES = 12; // a column of more different numbers is no list to choose from

  const said = (cell) => cell.textContent.trim();

  const toNumber = (text) => Number(text.replaceAll(",", ""));

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

  function chooser(values) {
    const select = document.createElement("select");
    select.add(new Option("all", ""));
    for (const value of [...values].sort(inOrder)) select.add(new Option(value, value));
    return select;
  }

  // Returns the control of a column and whether a cell fits it: columns of many numbers have an upper bound to type.
  function filterOf(rows, column) {
    const values = new Set(rows.map((row) => said(row.cells[column])).filter(Boolean));
    if (values.size <= MOST_CHOICES || [...values].some((value) => isNaN(toNumber(value)))) {
      const select = chooser(values);
      return { control: select, fits: (row) => !select.value || said(row.cells[column]) === select.value };
    }
    const most = document.createElement("input");
    most.type = "number";
    most.step = "any";
    most.min = "0";
    const isLow = (row) => toNumber(said(row.cells[column])) <= Number(most.value);
    return { control: most, fits: (row) => !most.value || isLow(row), note: " at most" };
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
    const chosen = columns.map((column) => ({ column, ...filterOf(rows, column) }));
    const count = document.createElement("span");
    count.setAttribute("role", "status");

    function update() {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const content = row.textContent.toLowerCase();
        const fits = words.every((word) => content.includes(word)) &&
          chosen.every((each) => each.fits(row));
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    }

    const bar = document.createElement("div");
    bar.className = "filters";
    bar.append(labelled("Find", text));
    for (const { column, control, note = "" } of chosen)
      bar.append(labelled(said(table.tHead.rows[0].cells[column]) + note, control));
    bar.append(count);
    if (box.dataset.csv) bar.append(csvLink(box.dataset.csv));
    bar.addEventListener("input", update);
    box.prepend(bar);
    update();
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".filtered").forEach(addFilters));
})();
