// Unsent requests in IndexedDB, shared by all tabs of this browser. Nothing here ever throws: without a usable storage
// (private browsing, a full disk) results are `null`, and the requests exist only in the memory of the tab.

const PATIENCE = 1500; // milliseconds after which an unresponsive storage counts as missing
const NAME = "outbox";

const soon = (promise) =>
  Promise.race([promise, new Promise((resolve) => setTimeout(() => resolve(null), PATIENCE))]);

export class Records {
  #opened = soon(this.#open()); // immediately: a tab may be closed right after a message was written

  /** Stores a record, which has a `conversation`, an `id` and a `tab`. */
  put(record) {
    return this.#run("readwrite", (store) => store.put(record));
  }

  delete({ conversation, id }) {
    return this.#run("readwrite", (store) => store.delete([conversation, id]));
  }

  clear(conversation) {
    return this.#each("readwrite", (record, cursor) => record.conversation === conversation && cursor.delete());
  }

  /** All records, of all conversations. */
  async all() {
    const found = [];
    return (await this.#each("readonly", (record) => found.push(record))) && found;
  }

  /** Assigns the records of a conversation to this tab, unless another open tab has them. Returns the assigned ones. */
  async claim(conversation, tab, isAlive) {
    const claimed = [];
    const isDone = await this.#each("readwrite", (record, cursor) => {
      if (record.conversation !== conversation || (record.tab !== tab && isAlive(record.tab))) return;
      if (record.tab !== tab) cursor.update({ ...record, tab });
      claimed.push({ ...record, tab });
    });
    return isDone && claimed;
  }

  #each(mode, visit) {
    const visitAll = (store) => {
      store.openCursor().onsuccess = ({ target }) => {
        if (!target.result) return;
        visit(target.result.value, target.result);
        target.result.continue();
      };
    };
    return this.#run(mode, visitAll, false);
  }

  /** Runs a transaction. Returns true, or null if it fails. `isOne` says that `work` makes all requests at once. */
  async #run(mode, work, isOne = true) {
    const database = await this.#opened;
    if (!database) return null;
    return soon(
      new Promise((resolve) => {
        try {
          const transaction = database.transaction(NAME, mode);
          transaction.oncomplete = () => resolve(true);
          transaction.onabort = () => resolve(null);
          work(transaction.objectStore(NAME));
          if (isOne) transaction.commit?.();
        } catch {
          resolve(null);
        }
      })
    );
  }

  #open() {
    return new Promise((resolve) => {
      try {
        const opening = indexedDB.open("outlast", 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore(NAME, { keyPath: ["conversation", "id"] });
        opening.onsuccess = () => {
          opening.result.onversionchange = () => opening.result.close();
          resolve(opening.result);
        };
        opening.onerror = (event) => {
          event.preventDefault();
          resolve(null);
        };
      } catch {
        resolve(null);
      }
    });
  }
}
