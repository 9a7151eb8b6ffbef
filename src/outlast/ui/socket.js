// One WebSocket to one agent. It reconnects automatically, after 0.1 s at first and with growing delays of up to 5 s.

const FIRST_RETRY = 100; // milliseconds
const LAST_RETRY = 5000;
const HANDSHAKE = 15000; // a restarting server makes connections wait
const isFinal = (code) => code === 1008 || (code >= 4000 && code < 5000);

export class Socket extends EventTarget {
  #url;
  #socket = null;
  #failures = 0;
  #timer = null;
  #isClosed = false;

  constructor(url) {
    super();
    this.#url = url;
    this.state = "connecting"; // connecting, open, lost, refused
    this.#connect();
    this.wake = this.wake.bind(this);
    addEventListener("online", this.wake);
    document.addEventListener("visibilitychange", this.wake);
  }

  /** Sends a frame. Returns false if there is no connection. */
  send(frame) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  /** Closes the socket for good. */
  close() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    removeEventListener("online", this.wake);
    document.removeEventListener("visibilitychange", this.wake);
    this.#socket?.close();
  }

  /** Retries immediately, if there is no connection. */
  wake() {
    if (this.state === "lost" && !document.hidden && this.#timer !== null) {
      clearTimeout(this.#timer);
      this.#connect();
    }
  }

  #connect() {
    this.#timer = null;
    const socket = (this.#socket = new WebSocket(this.#url));
    const patience = setTimeout(() => socket.close(), HANDSHAKE);
    socket.addEventListener("open", () => {
      clearTimeout(patience);
      if (this.#isClosed) return socket.close();
      this.#become("open");
    });
    socket.addEventListener("message", ({ data }) => {
      if (this.#isClosed || typeof data !== "string") return;
      this.#failures = 0;
      let frame;
      try {
        frame = JSON.parse(data);
      } catch {
        return; // an application may send anything
      }
      if (frame && typeof frame === "object") this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
    });
    socket.addEventListener("close", ({ code, reason }) => {
      clearTimeout(patience);
      if (this.#isClosed || socket !== this.#socket) return;
      if (isFinal(code)) {
        this.reason = reason || "the server gave no reason";
        return this.#become("refused");
      }
      const delay = Math.min(LAST_RETRY, FIRST_RETRY * 1.7 ** this.#failures) * (0.6 + 0.4 * Math.random());
      this.#failures += 1;
      this.#timer = setTimeout(() => this.#connect(), delay);
      this.#become("lost");
    });
  }

  #become(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}
