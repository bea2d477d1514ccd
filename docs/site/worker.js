// A page opened from a folder may start no worker, and the search is one: here an iframe takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html>")
      inner.document.close()
      inner.postMessage = (data) => this.answer(data)
      inner.importScripts = (...urls) => Promise.all(urls.map((one) => this.script(one)))
      this.ready = this.script(url)
    }
    script(url) {
      const inner = this.frame.contentDocument
      return new Promise((resolve, reject) => {
        const script = Object.assign(inner.createElement("script"), { src: url, onload: resolve, onerror: reject })
        inner.documentElement.append(script)
      })
    }
    answer(data) {
      const event = new MessageEvent("message", { data })
      this.onmessage?.(event)
      this.dispatchEvent(event)
    }
    postMessage(data) {
      const inner = this.frame.contentWindow
      this.ready.then(() => inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
