// Search in pages that are opened from a folder: browsers start no worker there, so its script runs in a hidden frame.
// The theme's own shim for this comes from another host; the worker looks for the name IFrameWorker.
if (location.protocol === "file:")
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.ready = this.load(url);
    }

    load(url) {
      const script = this.inner.document.createElement("script");
      script.src = new URL(url, location.href);
      this.inner.document.body.append(script);
      return new Promise((done, failed) => Object.assign(script, { onload: done, onerror: failed }));
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
