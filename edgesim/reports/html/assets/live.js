"use strict";
(() => {
  const everyMs = 1000 * Number(document.body.dataset.every), says = document.getElementById("connection");
  const ofReader = ["open", "aria-pressed"]; // attributes that the reader sets
  let tag = "";

  // Turns an element into a fresh one and touches only what differs, so that focus, open tables and drawings stay.
  const morph = (old, fresh) => {
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
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
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    before.slice(after.length).forEach((each) => each.remove());
    after.forEach((each, i) => (i < before.length ? morph(before[i], each) : old.append(each)));
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
