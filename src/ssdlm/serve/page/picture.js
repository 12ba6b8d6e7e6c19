// The denoising as an animated SVG, which needs nothing but itself.

const COLUMNS = 72;
const [FONT, LINE, MARGIN] = [15, 26, 20];
const MOST_FRAMES = 80;
const MOST_LETTERS = 92; // of the line below the text
const [SECONDS_PER_FRAME, SECONDS_AT_THE_END] = [0.12, 5];
const LIGHT = ["#1c1b1a", "#8f1259", "#a80f68", "#ab2775", "#b04080", "#b3568b", "#b66c95", "#ba85a0", "#bf9eac", "#c4c0b7"];
const DARK = ["#eceaf0", "#fb98d1", "#ff86cb", "#e67fbb", "#cb77aa", "#b26f9a", "#9b688b", "#82607a", "#685869", "#4a4d57"];

const colours = (list) => list.map((colour, n) => `.n${n}{fill:${colour}}`).join("");
const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const shortened = (text) => (text.length <= MOST_LETTERS ? text : `${text.slice(0, MOST_LETTERS)} ...`);

/** Returns the pieces of a step cut into lines between words. */
function wrapped(pieces) {
  const lines = [[]];
  let room = COLUMNS;
  for (const [text, kind] of pieces) {
    for (let word of text.replaceAll("\n", " ").split(/(?= )/)) {
      if (word.length > room) {
        lines.push([]);
        word = word.trimStart();
        room = COLUMNS;
      }
      const last = lines.at(-1).at(-1);
      if (last?.[1] === kind) last[0] += word;
      else if (word) lines.at(-1).push([word, kind]);
      room -= word.length;
    }
  }
  return lines;
}

/** Returns what is seen at a step, piece by piece, each with its kind. */
function piecesOf(drafts, number) {
  const pieces = drafts.pieces(number).map(({ text, kind }) => [text, kind]);
  return [[drafts.before, drafts.around], ...pieces, [drafts.after, "fixed"]];
}

function group(lines, attributes) {
  const rows = lines.map((line, row) => {
    const spans = line.map(([text, kind]) => `<tspan class="${kind}">${escape(text)}</tspan>`);
    return `<text x="${MARGIN}" y="${MARGIN + (row + 1) * LINE - 8}">${spans.join("")}</text>`;
  });
  return `<g ${attributes}>${rows.join("")}</g>`;
}

/** Returns a run as an SVG: each of its steps at its time, the last one for longer. */
export function picture(drafts, command) {
  const every = Math.ceil(drafts.steps.length / MOST_FRAMES);
  const last = drafts.steps.length;
  const frames = drafts.steps
    .map((_, index) => index + 1)
    .filter((number) => number === last || (number - 1) % every === 0)
    .map((number) => wrapped(piecesOf(drafts, number)));
  const height = Math.max(...frames.map((lines) => lines.length)) * LINE + 2 * MARGIN + 20;
  const width = Math.round(COLUMNS * FONT * 0.602) + 2 * MARGIN;
  const before = SECONDS_PER_FRAME * (frames.length - 1);
  const total = before + SECONDS_AT_THE_END;
  const style = `text{font:${FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
rect{fill:#fbfaf7;stroke:#dedad1}.given{fill:#275f8f}.fixed{fill:#1c1b1a}.old{fill:#8f8b84}.s{fill:#68655f;font-size:11px}${colours(LIGHT)}
@media(prefers-color-scheme:dark){rect{fill:#131418;stroke:#2f3138}.given{fill:#8cbff0}.fixed{fill:#eceaf0}.old{fill:#77747d}.s{fill:#a09da6}${colours(DARK)}}
.f{visibility:hidden;animation:f ${total.toFixed(2)}s step-end infinite}.e{animation:e ${total.toFixed(2)}s step-end infinite}
@keyframes f{0%{visibility:visible}${((100 * SECONDS_PER_FRAME) / total).toFixed(3)}%{visibility:hidden}}
@keyframes e{0%{visibility:hidden}${((100 * before) / total).toFixed(3)}%{visibility:visible}}
@media(prefers-reduced-motion){.f,.e{animation:none}}`;
  const body = frames.map((lines, index) => {
    const delay = `class="f" style="animation-delay:${(index * SECONDS_PER_FRAME).toFixed(2)}s"`;
    return group(lines, index === frames.length - 1 ? 'class="e"' : delay);
  });
  const text = piecesOf(drafts, last).map(([piece]) => piece).join("");
  return `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" width="${width}" viewBox="0 0 ${width} ${height}">
<title>A text settling out of noise: ${escape(text)}</title><style>${style}</style>
<rect x=".5" y=".5" width="${width - 1}" height="${height - 1}" rx="6"/>
${body.join("\n")}
<text x="${MARGIN}" y="${height - 14}" class="s">${escape(shortened(command))}</text></svg>
`;
}
