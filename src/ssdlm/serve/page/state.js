// What the page has before it: the model, and the text in its latest state.

export const state = {
  info: { guides: {}, defaults: {}, limits: {} },
  models: [],
  more: {}, // options of a link that the page has no control for
  entry: null, // { asked, texts, doc }: what is seen
  running: null, // the AbortController of what is being written
};

/** Gives up what is being written, and returns the controller of what comes next. */
export function instead() {
  state.running?.abort();
  state.running = new AbortController();
  return state.running;
}
