/** Pictures and other files, saved from the page. */

import { render } from "preact";

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

/** Saves the bars and the texts of a table as a picture of their own: where they are on the screen, cut as cells are. */
export function saveSvg(name: string, shown: Element): void {
  const { left, top, width, height } = shown.getBoundingClientRect();
  const parts = [...shown.querySelectorAll("rect, th, .number")].map((each) => {
    const box = each.getBoundingClientRect();
    const place = { x: box.left - left, y: box.top - top, width: box.width, height: box.height };
    if (each instanceof SVGElement) return <rect {...place} fill={getComputedStyle(each).fill} />;
    return (
      <svg {...place}>
        <text y="50%" dominant-baseline="middle">
          {(each.querySelector("bdi") ?? each).textContent}
        </text>
      </svg>
    );
  });
  const around = new DocumentFragment();
  render(<svg {...{ width, height, "font-family": "sans-serif", "font-size": 14 }}>{parts}</svg>, around);
  save(`${name}.svg`, new XMLSerializer().serializeToString(around));
}
