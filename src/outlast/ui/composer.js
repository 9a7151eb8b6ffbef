// The form for a new message: text, files and images, sent with Enter.

import { h, icon, iconButton, sizeText } from "./dom.js";

const SIDE = 1400; // pixels of the longer side of an image that is reduced because it is too large

const read = (blob) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });

/** Returns a smaller version of an image as a data URL; null if it cannot be decoded or reduced enough. */
async function reduced(file, limit) {
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    return null;
  }
  for (let side = SIDE; side >= 200; side /= 1.6) {
    const scale = Math.min(1, side / Math.max(image.width, image.height));
    const canvas = h("canvas", { width: Math.round(image.width * scale), height: Math.round(image.height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const url = canvas.toDataURL("image/jpeg", 0.82);
    if (url.length <= limit) return url;
  }
  return null;
}

export class Composer {
  #files = []; // {part, node}
  #actions;

  /**
   * `actions`: `send(parts)`, which returns false if they are too large; `stop()`, `complain(text)`. `limit` is the
   * maximum number of characters of a message.
   */
  constructor({ form, area, shelf, picker, attach, send, stop, drop }, actions) {
    this.#actions = actions;
    this.limit = 900000;
    Object.assign(this, { form, area, shelf, picker, send, stop });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#send();
      }
    });
    area.addEventListener("input", () => this.#changed());
    area.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (files.length) {
        event.preventDefault();
        this.add(files);
      }
    });
    attach.addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      this.add([...picker.files]);
      picker.value = "";
    });
    stop.addEventListener("click", () => actions.stop());
    drop.addEventListener("dragover", (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      drop.classList.add("is-over");
    });
    drop.addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("is-over"));
    drop.addEventListener("drop", (event) => {
      drop.classList.remove("is-over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
    this.#changed();
  }

  show(isBusy) {
    this.stop.hidden = !isBusy;
    this.form.classList.toggle("is-busy", isBusy);
  }

  write(text) {
    this.area.value = text;
    this.#changed();
    this.area.focus();
  }

  async add(files) {
    for (const file of files) {
      const left = this.limit - this.#files.reduce((sum, each) => sum + each.part.url.length, 0) - 2000;
      let url = file.size * 1.4 < left ? await read(file) : null;
      let mediaType = file.type || "application/octet-stream";
      if (url === null && file.type.startsWith("image/")) {
        url = await reduced(file, left);
        mediaType = "image/jpeg";
      }
      if (url === null) {
        this.#actions.complain(
          `${file.name} is too large (${sizeText(file.size)}): a message may contain ${sizeText(Math.round(this.limit * 0.7))} of files.`
        );
        continue;
      }
      this.#shelve({ type: "file", mediaType, filename: file.name, url }, file.size);
    }
    this.#changed();
  }

  #shelve(part, size) {
    const remove = iconButton("close", `Remove ${part.filename}`, () => {
      this.#files = this.#files.filter((each) => each.part !== part);
      item.remove();
      this.#changed();
      this.area.focus();
    });
    const picture = part.mediaType.startsWith("image/") ? h("img", { src: part.url, alt: "" }) : icon("file");
    const item = h(
      "li",
      {},
      picture,
      h("span", { class: "name" }, part.filename),
      h("span", { class: "size" }, sizeText(size)),
      remove
    );
    this.#files.push({ part });
    this.shelf.append(item);
  }

  #send() {
    const text = this.area.value.trim();
    if (!text && !this.#files.length) return;
    const parts = this.#files.map(({ part }) => part);
    if (text) parts.push({ type: "text", text });
    if (this.#actions.send(parts) === false) return;
    this.#files = [];
    this.shelf.replaceChildren();
    this.area.value = "";
    this.#changed();
  }

  /** Puts a message back into the form, above the text that is being written. */
  putBack(parts) {
    const texts = parts.filter((part) => part.type === "text").map((part) => part.text);
    for (const part of parts) if (part.type === "file") this.#shelve(part, Math.round(part.url.length * 0.75));
    this.write([...texts, this.area.value].filter(Boolean).join("\n\n"));
  }

  #changed() {
    this.send.disabled = !this.area.value.trim() && !this.#files.length;
    this.shelf.hidden = !this.#files.length;
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(this.area.scrollHeight, 240)}px`;
  }
}
