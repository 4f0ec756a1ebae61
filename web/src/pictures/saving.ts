/** Pictures and other files, saved from the page. */

import type { Named } from "./Bars.js";

/** The size of a bar in a saved picture, and of the texts on both sides, in pixels. */
const [ROW, LABEL, BAR, NUMBER] = [20, 200, 320, 100] as const;

/** Has the browser save a file. */
export function save(name: string, bytes: Uint8Array | string): void {
  const url = URL.createObjectURL(new Blob([bytes as Uint8Array<ArrayBuffer> | string]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Saves what a canvas shows, each pixel as a square of `scale` pixels. */
export function savePng(name: string, canvas: HTMLCanvasElement, scale: number): void {
  const large = new OffscreenCanvas(canvas.width * scale, canvas.height * scale);
  const context = large.getContext("2d");
  if (!context) return;
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  void large
    .convertToBlob()
    .then((blob) => blob.arrayBuffer())
    .then((bytes) => save(`${name}.png`, new Uint8Array(bytes)));
}

/** Returns bars as a picture; `places` are where each begins and how long it is, from 0 to 100. */
export function svgOf(
  bars: readonly Named[],
  places: readonly (readonly [number, number])[],
  textOf: (value: number) => string,
): string {
  const signed = bars.some(({ value }) => value < 0);
  const size = { width: LABEL + BAR + NUMBER, height: ROW * bars.length };
  const drawing = document.implementation.createDocument("http://www.w3.org/2000/svg", "svg");
  const add = (kind: string, attributes: Readonly<Record<string, string | number>>, text = ""): void => {
    const element = drawing.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    element.textContent = text;
    drawing.documentElement.append(element);
  };
  const { width, height } = size;
  for (const [name, value] of Object.entries({ width, height, "font-family": "sans-serif", "font-size": 12 }))
    drawing.documentElement.setAttribute(name, String(value));
  bars.forEach(({ name, value }, index) => {
    const [begin = 0, length = 0] = places[index] ?? [];
    const y = index * ROW;
    add("text", { x: LABEL - 8, y: y + 14, "text-anchor": "end" }, name);
    add("rect", {
      x: LABEL + (BAR * begin) / 100,
      y: y + 4,
      width: (BAR * length) / 100,
      height: ROW - 8,
      fill: value < 0 ? "#2f79b5" : signed ? "#c1423c" : "#0f6e73",
    });
    add("text", { x: LABEL + BAR + 8, y: y + 14 }, textOf(value));
  });
  return new XMLSerializer().serializeToString(drawing);
}
