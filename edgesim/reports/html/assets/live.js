"use strict";
(() => {
  const everyMs = 1000 * Number(document.body.dataset.every), says = document.getElementById("connection");
  const ofReader = ["open", "aria-pressed"]; // attributes that the reader sets
  let tag = "";

  const isBlank = (node) => node.nodeType === Node.TEXT_NODE && !node.data.trim();
  const kind = (node) =>
    node.nodeType === Node.ELEMENT_NODE ? [node.nodeName, node.id, node.classList[0]].join() : node.nodeName;

  // Turns a node into a fresh one of its kind and touches only what differs, so that focus, open tables and drawings stay.
  const morph = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    const chart = fresh.classList.contains("chart"); // plotly owns the rest of it
    if (chart && old.style.height !== fresh.style.height) old.style.height = fresh.style.height;
    const names = chart ? ["aria-label", "data-figure"] : [...new Set([...old.getAttributeNames(), ...fresh.getAttributeNames()])];
    for (const name of names.filter((each) => !ofReader.includes(each))) {
      const value = fresh.getAttribute(name);
      if (value === null) old.removeAttribute(name);
      else if (value !== old.getAttribute(name)) old.setAttribute(name, value);
    }
    if (chart) return;
    const before = [...old.childNodes].filter((each) => !isBlank(each));
    const after = [...fresh.childNodes].filter((each) => !isBlank(each));
    after.forEach((each, i) => {
      const wanted = after.slice(i).map(kind);
      while (before.length && !wanted.includes(kind(before[0]))) before.shift().remove();
      if (before.length && kind(before[0]) === wanted[0]) morph(before.shift(), each);
      else old.insertBefore(each, before[0] || null);
    });
    before.forEach((each) => each.remove());
  };

  const look = async () => {
    let waitMs = everyMs;
    try {
      const answer = await fetch("/", { headers: { "If-None-Match": tag }, cache: "no-store" });
      if (answer.status === 200) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        tag = answer.headers.get("ETag");
        document.title = fresh.title;
        morph(document.querySelector("main"), fresh.querySelector("main"));
        document.dispatchEvent(new Event("edgesim:changed"));
      }
      if (says.textContent) says.textContent = "";
    } catch {
      says.textContent = "edgesim watch has ended. The page shows what it sent last.";
      waitMs = Math.max(everyMs, 5000);
    }
    setTimeout(look, waitMs);
  };
  setTimeout(look, everyMs);
})();
