// The pictures of the three paths: one row a step, one column a position, noise to decided.

const COLUMNS = 10;
const ROWS = 8;
const NOISE = {
  left: (row, column) => (column < ((row + 1) / ROWS) * COLUMNS ? 0 : 1),
  window: (row, column) => Math.min(1, Math.max(0, (column - (row * 15) / ROWS + 5) / 5)),
  all: (row) => 1 - row / (ROWS - 1),
};

/** Draws the picture of a path into an SVG element. */
export function drawPath(svg, path) {
  for (let row = 0; row < ROWS; row++) {
    for (let column = 0; column < COLUMNS; column++) {
      const cell = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const place = { x: column * 8 + 0.5, y: row * 6 + 0.5, width: 7, height: 5 };
      for (const [name, value] of Object.entries(place)) cell.setAttribute(name, value);
      cell.setAttribute("opacity", (0.1 + 0.9 * (1 - NOISE[path](row, column)) ** 1.5).toFixed(2));
      svg.append(cell);
    }
  }
}
