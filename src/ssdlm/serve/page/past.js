// Undo and redo: the states of the text, the latest at the top.

export class Past {
  constructor() {
    this.states = [];
    this.at = -1;
  }

  get now() {
    return this.states[this.at];
  }

  get canUndo() {
    return this.at > 0;
  }

  get canRedo() {
    return this.at < this.states.length - 1;
  }

  /** Goes on to a new state; what was undone is forgotten. */
  push(entry) {
    this.states = [...this.states.slice(0, this.at + 1), entry];
    this.at = this.states.length - 1;
  }

  /** Puts a state in place of the latest. */
  replace(entry) {
    this.states[this.at] = entry;
  }

  undo() {
    if (this.canUndo) this.at -= 1;
    return this.now;
  }

  redo() {
    if (this.canRedo) this.at += 1;
    return this.now;
  }
}
