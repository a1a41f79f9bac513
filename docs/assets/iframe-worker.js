// Worker for pages that are opened from the disk. A browser refuses to start a worker from file://, so the script of
// the search runs in a hidden frame instead. Only what the search of the theme asks for is here.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "search" });
      document.documentElement.append(this.frame);
      const inner = this.frame.contentWindow;
      const load = (source) =>
        new Promise((loaded, failed) => {
          const script = Object.assign(inner.document.createElement("script"), { src: source });
          Object.assign(script, { onload: loaded, onerror: failed });
          inner.document.head.append(script);
        });
      inner.importScripts = (...sources) => sources.reduce((done, each) => done.then(() => load(each)), Promise.resolve());
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner = inner;
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
