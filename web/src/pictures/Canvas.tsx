/** Pixels as they are, one beside the other. */

import { useLayoutEffect, useRef } from "preact/hooks";
import type { ComponentProps, TargetedPointerEvent } from "preact";
import type { Pixels } from "./colours.js";

/** Takes the pixel that a pointer moves over, or is pressed at. */
export type OnPoint = (x: number, y: number, event: TargetedPointerEvent<HTMLCanvasElement>) => void;

type Props = Pixels & Omit<ComponentProps<"canvas">, "ref" | keyof Pixels> & { readonly onPoint?: OnPoint };

/** Draws the pixels; its size on the screen is that of its style. */
export function Canvas({ pixels, width, height, onPoint, ...others }: Props): preact.JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const image = new ImageData(width, height);
    image.data.set(pixels); // the last row may be shorter
    canvas.current?.getContext("2d")?.putImageData(image, 0, 0);
  }, [pixels, width, height]);
  const point = (event: TargetedPointerEvent<HTMLCanvasElement>): void => {
    const { clientWidth, clientHeight } = event.currentTarget;
    const [x, y] = [(event.offsetX / clientWidth) * width, (event.offsetY / clientHeight) * height];
    onPoint?.(Math.floor(x), Math.floor(y), event);
  };
  return <canvas ref={canvas} {...{ width, height }} onPointerMove={point} onPointerDown={point} {...others} />;
}
