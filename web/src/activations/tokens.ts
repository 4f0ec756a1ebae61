/** The texts of the tokens of an example, where an explanation brought them. */

import type { Asked } from "../state/asked.js";

/** Returns the texts; none where no explanation has them. */
export function tokensOf({ reply }: Asked, row: number): readonly string[] {
  return (
    reply.attributions.map(({ message }) => message.tokens?.texts[row]?.tokens ?? []).find((each) => each.length) ?? []
  );
}
