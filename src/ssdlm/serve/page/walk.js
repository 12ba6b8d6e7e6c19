// One stop for Tab in a row of elements, and arrow keys between them.

const BY = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

/** Goes where an arrow key leads; returns the element that has the focus now, if it was one. */
export function walk(event, elements, from) {
  const at = elements.indexOf(from);
  if (!(event.key in BY) || at < 0) return null;
  event.preventDefault();
  const next = elements[Math.min(elements.length - 1, Math.max(0, at + BY[event.key]))];
  for (const one of elements) one.tabIndex = one === next ? 0 : -1;
  next.focus();
  return next;
}
