// Lets pages search when they are opened as files: browsers start no worker from a file, so the
// worker's script runs in a hidden frame instead. The theme's worker knows that by this name.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      this.loaded = new Promise((done) => {
        const inside = this.inner.document;
        inside.open();
        inside.write("<!doctype html><title>search</title><body></body>");
        inside.close();
        this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
        this.inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
        this.load(url).then(done);
      });
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = url;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
