// The stored messages that this page has loaded: the newest ones, and older ones on demand. Pure.

export class Stored {
  messages = []; // oldest first
  hasEarlier = false; // whether the server has older messages

  at(id) {
    return this.messages.findLastIndex((message) => message.id === id);
  }

  has(id) {
    return this.at(id) >= 0;
  }

  /** Sets the newest messages. Older ones that were loaded stay above them. */
  show(newest, hasEarlier) {
    const place = newest.length && hasEarlier ? this.at(newest[0].id) : -1;
    if (place < 0) {
      this.messages = newest;
      this.hasEarlier = hasEarlier;
    } else this.messages = [...this.messages.slice(0, place), ...newest];
  }

  /** Replaces everything after the message `id`. Returns false if that message is not loaded. */
  showAfter(id, changed) {
    const place = this.at(id);
    if (place < 0) return false;
    this.messages = [...this.messages.slice(0, place + 1), ...changed];
    return true;
  }

  /** Replaces a changed message, if it is loaded. */
  update(message) {
    const place = this.at(message?.id);
    if (place >= 0) this.messages = this.messages.with(place, message);
  }

  append(message) {
    this.messages = [...this.messages, message];
  }

  /** Adds older messages before the message `id`. Returns false if that is no longer the first one. */
  prepend(older, id, hasEarlier) {
    if (this.messages[0]?.id !== id) return false;
    const overlap = older.findIndex((message) => message.id === id);
    this.messages = [...(overlap < 0 ? older : older.slice(0, overlap)), ...this.messages];
    this.hasEarlier = hasEarlier;
    return true;
  }

  /** Removes the messages from this index on. */
  cut(place) {
    this.messages = this.messages.slice(0, place);
  }

  clear() {
    this.messages = [];
    this.hasEarlier = false;
  }
}

/** Returns the messages to show: the stored ones, unsent ones, and streaming answers. */
export function composed(stored, entries, streams) {
  const shown = [...stored];
  const placeOf = (id) => shown.findLastIndex((each) => each.id === id);
  for (const { message, isEdit, refusal } of entries) {
    if (!message) continue;
    const place = placeOf(message.id);
    if (place < 0 && !isEdit) shown.push(message);
    else if (place >= 0 && isEdit && refusal !== undefined) shown[place] = message;
  }
  for (const { builder, answers } of streams) {
    if (builder.isEmpty) continue;
    const { message } = builder;
    const place = placeOf(message.id);
    const question = placeOf(answers);
    if (place >= 0) shown[place] = message;
    else shown.splice(question < 0 ? shown.length : question + 1, 0, message);
  }
  return shown;
}

/** Returns the user's messages at the end: the last one, and unanswered ones before it. */
export function trailing(messages) {
  return messages.slice(messages.findLastIndex((message) => message.role !== "user") + 1);
}
