/** A text whose tokens have the colour of what each adds. */

import { pixelsOf, scaleOf } from "../pictures/colours.js";
import { Legend } from "../pictures/Picture.js";
import { short } from "../ui/text.js";

interface Props {
  readonly texts: readonly string[];
  readonly values: ArrayLike<number>;
  /** Tries what happens without a token. */
  readonly onChoose?: (index: number) => void;
}

/** Shows the tokens without their padding; each has its number as a title, and below it for those who cannot point. */
export function Tokens({ texts, values, onChoose }: Props): preact.JSX.Element {
  const Tag = onChoose ? "button" : "span";
  const scale = scaleOf(values, true);
  const pixels = pixelsOf(values, scale);
  return (
    <>
      <ol class="tokens">
        {texts.slice(0, endOf(texts, values)).map((text, index) => {
          const value = short(values[index] ?? Number.NaN);
          const [red, green, blue] = pixels.subarray(4 * index, 4 * index + 3);
          const style = {
            background: `rgb(${red} ${green} ${blue})`,
            color: isDark(red, green, blue) ? "#ffffff" : "#000000",
          };
          const title = `${text}: ${value}${onChoose ? ". What happens without it?" : ""}`;
          return (
            <li key={index}>
              <Tag class="piece" {...{ style, title }} onClick={() => onChoose?.(index)}>
                <bdi>{text}</bdi>
              </Tag>
              <small class="muted number">{value}</small>
            </li>
          );
        })}
      </ol>
      <Legend scale={scale} />
    </>
  );
}

function isDark(red = 0, green = 0, blue = 0): boolean {
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}

/** Returns how many tokens come before the padding: repetitions of the last token that all have 0. */
function endOf(texts: readonly string[], values: ArrayLike<number>): number {
  let end = texts.length;
  while (end > 0 && texts[end - 1] === texts.at(-1) && values[end - 1] === 0) end--;
  return end || texts.length;
}
