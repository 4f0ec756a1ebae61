/** Rows of data as people look at them: pictures, or numbers with names. */

import { isImage, pictureOf } from "../explanations/Values.js";
import type { Part } from "../measures/index.js";
import { Canvas } from "../pictures/Picture.js";
import { short } from "../ui/index.js";

const MOST_NUMBERS = 6;

type Props = Readonly<{ label: string; part: Part; names?: readonly string[] }>;

/** Shows an example: a picture, or its first numbers. */
export function Row({ label, part, names = [] }: Props): preact.JSX.Element {
  if (isImage(part)) return <Canvas {...pictureOf(part)} role="img" aria-label={label} />;
  const shown = Array.from(part.values).slice(0, MOST_NUMBERS);
  const told = shown.map((value, at) => `${names[at] ?? at} ${short(value)}`).join(", ");
  return <bdi class="small">{shown.length < part.values.length ? `${told}, …` : told}</bdi>;
}
