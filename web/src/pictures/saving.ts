/** Pictures and other files, saved from the page. */

import { render, type VNode } from "preact";

/** Has the browser save a file. */
export function save(name: string, content: Uint8Array | string | Blob): void {
  const url = URL.createObjectURL(new Blob([content as BlobPart]));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

type Draw = (context: OffscreenCanvasRenderingContext2D) => void;

/** Saves what is drawn into an area, each pixel of it as a square of `scale` pixels. */
export function savePng(name: string, [width, height]: readonly [number, number], scale: number, draw: Draw): void {
  const canvas = new OffscreenCanvas(width * scale, height * scale);
  const context = canvas.getContext("2d");
  if (!context) return;
  context.imageSmoothingEnabled = false;
  context.scale(scale, scale);
  draw(context);
  void canvas.convertToBlob().then((blob) => save(`${name}.png`, blob));
}

/** Saves an `<svg>`. */
export function saveSvg(name: string, drawing: VNode): void {
  const around = new DocumentFragment();
  render(drawing, around);
  save(`${name}.svg`, new XMLSerializer().serializeToString(around));
}
